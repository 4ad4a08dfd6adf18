-- Deletes an entry. Returns 1, or 0 if there is none.
local found = call('HMGET', ENTRY, 'state', 'token')
if found[1] == 'gone' and found[2] == TOKEN then
  return 1
elseif not found[1] or found[1] == 'gone' then
  call('ZREM', EXPIRIES, ID)
  return 0
end
allow_without_memory()
call('HSET', ENTRY, 'state', 'gone', 'token', TOKEN)
call('HDEL', ENTRY, 'value')
call('PEXPIRE', ENTRY, GRACE_MILLIS)
call('ZREM', EXPIRIES, ID)
publish()
return 1
