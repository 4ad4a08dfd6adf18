-- Deletes all messages, but no dead letters. Returns the number of messages.
if replayed then return tonumber(replayed) end
promote_due()
local count = message_count()
call('UNLINK', PENDING, INVISIBLE, DATA, DELAYED, RECORDS, EXPIRING, GROUP_WAITING, GROUP_HEADS)
call('HDEL', META, 'tombs')
ready_count = 0
finish_operation(tostring(count))
return count
