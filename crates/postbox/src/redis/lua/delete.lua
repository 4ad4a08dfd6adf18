-- Removes the mailbox with all that is in it. What was done is remembered: a request may come a second time, late.
for i = 2, #KEYS do
  call('UNLINK', KEYS[i])
end
call('HDEL', META, 'made', 'due', 'tombs')
call('PEXPIRE', META, MEMORY * 1000)
return 1
