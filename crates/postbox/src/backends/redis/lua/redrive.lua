-- Makes dead letters visible again, up to the limit of the mailbox.
-- ARGV: 6 the maximum, 7 the id of a single message, or nothing. Returns the number of messages.
if replayed then return tonumber(replayed) end
promote_due()
local max = tonumber(ARGV[6])
if settings.max_size then
  max = math.min(max, math.max(0, settings.max_size - message_count()))
end
local ids = {}
if ARGV[7] == '' then
  ids = max > 0 and call('ZRANGE', DEAD_LETTER_IDS, 0, max - 1) or {}
elseif max > 0 and call('ZSCORE', DEAD_LETTER_IDS, ARGV[7]) then
  ids = { ARGV[7] }
end
for _, id in ipairs(ids) do
  local letter = cmsgpack.unpack(call('HGET', DEAD_LETTERS, id))
  call('ZREM', DEAD_LETTER_IDS, id)
  call('HDEL', DEAD_LETTERS, id)
  call('HSET', DATA, id, letter.b)
  local entry = string.char(letter.g and 2 or 0) .. '\0\0\0' .. id .. sub(letter.e, 21)
  enqueue(entry, letter.g and { g = letter.g } or nil)
end
push_ready()
finish_operation(tostring(#ids))
return #ids
