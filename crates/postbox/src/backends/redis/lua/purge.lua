-- Removes all messages, but no dead letters. Answers how many.
if replayed then
  return tonumber(replayed)
end
--@messages
promote_due()
local many = message_count()
call('UNLINK', PENDING, INVISIBLE, DATA, DELAYED, RECORDS, EXPIRING, GROUP_WAITING, GROUP_HEADS)
call('HDEL', META, 'tombs')
ready_count = 0
finish_operation(tostring(many))
return many
