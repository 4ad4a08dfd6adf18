-- Makes a pending entry. ARGV: 5 its time to live in milliseconds. Answers 0 if there is one.
local old = call('ZRANGEBYSCORE', EXPIRIES, '-inf', now - GRACE, 'LIMIT', 0, 100)
if #old > 0 then
  call('ZREM', EXPIRIES, unpack(old))
end
local found = call('HMGET', ENTRY, 'state', 'token')
if found[1] and found[1] ~= 'gone' then
  return found[2] == TOKEN and 1 or 0
end
local expires = now + ARGV[5]
call('DEL', ENTRY)
call('HSET', ENTRY, 'state', 'pending', 'created', now, 'expires', expires, 'token', TOKEN)
call('PEXPIREAT', ENTRY, expires + GRACE)
call('ZADD', EXPIRIES, expires, ID)
return 1
