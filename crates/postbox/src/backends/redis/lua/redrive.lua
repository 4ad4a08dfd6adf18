-- Makes dead letters visible again. ARGV: 5 how many at most, 6 the id of the only one, or nothing.
if replayed then
  return tonumber(replayed)
end
--@messages
promote_due()
local most = tonumber(ARGV[5])
if max_size then
  most = math.min(most, math.max(0, max_size - message_count()))
end
local ids = {}
if ARGV[6] == '' then
  ids = most > 0 and call('ZRANGE', DEAD_LETTER_IDS, 0, most - 1) or {}
elseif most > 0 and call('ZSCORE', DEAD_LETTER_IDS, ARGV[6]) then
  ids = { ARGV[6] }
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
