-- Removes a message that is delayed and was never visible. ARGV: 5 its id.
if replayed then
  return tonumber(replayed)
end
--@messages
promote_due()
local member = call('HGET', DELAYED, ARGV[5])
local done = member and sub(member, 1, 1) == 'D'
if done then
  local entry = sub(member, 2)
  call('ZREM', INVISIBLE, member)
  call('HDEL', DELAYED, ARGV[5])
  delete_message(entry, read_record(entry))
end
finish_operation(done and '1' or '0')
return done and 1 or 0
