-- Removes the mailbox with all that is in it. What was done is remembered, this too: a request may come a second time, late.
if replayed then
  return 1
end
for i = 2, #KEYS do
  call('UNLINK', KEYS[i])
end
call('HDEL', META, 'made', 'due', 'tombs', 'idle_at')
stored_settings, idle_expiry = false, nil
finish_operation('')
return 1
