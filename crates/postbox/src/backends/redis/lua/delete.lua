-- Deletes the mailbox with all its messages. Returns 1. The remembered requests stay, so that none
-- is executed twice.
if replayed then return 1 end
for i = 2, #KEYS do
  call('UNLINK', KEYS[i])
end
call('HDEL', META, 'made', 'due', 'tombs', 'idle_at')
stored_settings = false
finish_operation('')
return 1
