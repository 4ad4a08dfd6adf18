-- Shows an entry; with ARGV 5 `take` a resolved one is consumed by it. Answers state, value, type, created, expires, resolved,
-- and the moment.
local found = call('HMGET', ENTRY, 'state', 'expires', 'value', 'type', 'created', 'resolved', 'token')
local state = current_state(found[1], found[2])
if ARGV[5] == 'take' then
  if found[1] == 'gone' and found[7] == TOKEN and found[3] then
    -- Taken by this very call, whose answer was lost.
    state = 'resolved'
  elseif state == 'resolved' then
    allow_without_memory()
    -- Its value stays for a minute, for this call alone.
    call('HSET', ENTRY, 'state', 'gone', 'token', TOKEN)
    call('PEXPIRE', ENTRY, GRACE)
    call('ZREM', EXPIRIES, ID)
  end
end
if not state then
  return nil
end
local value = state == 'resolved' and found[3]
return { state, value, found[4], found[5], found[2], found[6], now }
