-- Makes dead letters visible again. ARGV: 5 how many at most, 6 the id of the only one, or nothing.
if replay then
  return tonumber(replay)
end
--@messages
promote()
local most = tonumber(ARGV[5])
if max_size then
  most = math.min(most, math.max(0, max_size - total()))
end
local ids = {}
if ARGV[6] == '' then
  ids = most > 0 and call('ZRANGE', DEAD, 0, most - 1) or {}
elseif most > 0 and call('ZSCORE', DEAD, ARGV[6]) then
  ids = { ARGV[6] }
end
for _, id in ipairs(ids) do
  local letter = cmsgpack.unpack(call('HGET', GRAVES, id))
  call('ZREM', DEAD, id)
  call('HDEL', GRAVES, id)
  call('HSET', DATA, id, letter.b)
  local entry = string.char(letter.g and 2 or 0) .. '\0\0\0' .. id .. sub(letter.e, 21)
  join(entry, letter.g and { g = letter.g } or nil)
end
flush()
finish(tostring(#ids))
return #ids
