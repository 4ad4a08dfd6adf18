-- Removes a message that is delayed and was never visible. ARGV: 5 its id.
if replay then
  return tonumber(replay)
end
--@messages
promote()
local member = call('HGET', DELAYED, ARGV[5])
local done = member and sub(member, 1, 1) == 'D'
if done then
  local entry = sub(member, 2)
  call('ZREM', INVISIBLE, member)
  call('HDEL', DELAYED, ARGV[5])
  forget(entry, record_of(entry))
end
finish(done and '1' or '0')
return done and 1 or 0
