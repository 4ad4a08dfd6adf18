-- Cancels a pending entry. Returns 1, or 0 if the entry is not pending.
local found = call('HMGET', ENTRY, 'state', 'expires', 'token')
local state = current_state(found[1], found[2])
if state == 'cancelled' and found[3] == TOKEN then
  return 1
elseif state ~= 'pending' then
  return 0
end
allow_without_memory()
call('HSET', ENTRY, 'state', 'cancelled', 'token', TOKEN)
publish()
return 1
