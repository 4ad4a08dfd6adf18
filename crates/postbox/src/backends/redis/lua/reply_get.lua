-- Reads an entry. ARGV: 5 `take` to consume it if it is resolved.
-- Returns state, value, type, created, expires, resolved and the time, or nothing.
local found = call('HMGET', ENTRY, 'state', 'expires', 'value', 'type', 'created', 'resolved', 'token')
local state = current_state(found[1], found[2])
if ARGV[5] == 'take' then
  if found[1] == 'gone' and found[7] == TOKEN and found[3] then
    -- An earlier attempt of this request consumed it.
    state = 'resolved'
  elseif state == 'resolved' then
    allow_without_memory()
    -- The value stays for a further attempt of this request.
    call('HSET', ENTRY, 'state', 'gone', 'token', TOKEN)
    call('PEXPIRE', ENTRY, GRACE_MILLIS)
    call('ZREM', EXPIRIES, ID)
  end
end
if not state then return nil end
local value = state == 'resolved' and found[3]
return { state, value, found[4], found[5], found[2], found[6], now }
