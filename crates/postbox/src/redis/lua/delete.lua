-- Removes the mailbox with all that is in it.
for i = 1, #KEYS do
  if KEYS[i] ~= OP then
    call('UNLINK', KEYS[i])
  end
end
return 1
