-- Creates a pending entry. ARGV: 5 its time to live in milliseconds. Returns 1, or 0 if the entry
-- exists.
local deleted = call('ZRANGEBYSCORE', EXPIRIES, '-inf', now - GRACE_MILLIS, 'LIMIT', 0, 100)
if #deleted > 0 then call('ZREM', EXPIRIES, unpack(deleted)) end
local found = call('HMGET', ENTRY, 'state', 'token')
if found[1] and found[1] ~= 'gone' then return found[2] == TOKEN and 1 or 0 end
local expires = now + ARGV[5]
call('DEL', ENTRY)
call('HSET', ENTRY, 'state', 'pending', 'created', now, 'expires', expires, 'token', TOKEN)
call('PEXPIREAT', ENTRY, expires + GRACE_MILLIS)
call('ZADD', EXPIRIES, expires, ID)
return 1
