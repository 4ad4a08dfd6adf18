-- Shows dead letters, oldest first. ARGV: 5 how many at most.
--@messages
promote_due()
finish_operation()
local letters = {}
local ids = tonumber(ARGV[5]) > 0 and call('ZRANGE', DEAD_LETTER_IDS, 0, ARGV[5] - 1) or {}
for i = 1, #ids do
  local letter = cmsgpack.unpack(call('HGET', DEAD_LETTERS, ids[i]))
  letters[i] = { letter.e, letter.t, letter.r, letter.b }
end
return letters
