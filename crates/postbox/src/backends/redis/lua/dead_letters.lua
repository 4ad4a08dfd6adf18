-- Reads dead letters, the oldest first. ARGV: 6 the maximum.
-- Returns the entry, the time, the reason and the message of each.
promote_due()
finish_operation()
local letters = {}
local ids = tonumber(ARGV[6]) > 0 and call('ZRANGE', DEAD_LETTER_IDS, 0, ARGV[6] - 1) or {}
for i = 1, #ids do
  local letter = cmsgpack.unpack(call('HGET', DEAD_LETTERS, ids[i]))
  letters[i] = { letter.e, letter.t, letter.r, letter.b }
end
return letters
