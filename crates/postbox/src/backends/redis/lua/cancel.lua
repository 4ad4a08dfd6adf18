-- Deletes a message that is delayed and was never visible. ARGV: 6 its id.
-- Returns 1, or 0 if there is no such message.
if replayed then return tonumber(replayed) end
promote_due()
local member = call('HGET', DELAYED, ARGV[6])
local is_cancelled = member and sub(member, 1, 1) == 'D'
if is_cancelled then
  local entry = sub(member, 2)
  call('ZREM', INVISIBLE, member)
  call('HDEL', DELAYED, ARGV[6])
  delete_message(entry, read_record(entry))
end
finish_operation(is_cancelled and '1' or '0')
return is_cancelled and 1 or 0
