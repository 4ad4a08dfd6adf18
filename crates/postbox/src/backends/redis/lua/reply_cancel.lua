-- Cancels a pending entry. Answers 0 if it is not pending.
local found = call('HMGET', ENTRY, 'state', 'expires', 'token')
local state = state_of(found[1], found[2])
if state == 'cancelled' and found[3] == TOKEN then
  return 1
elseif state ~= 'pending' then
  return 0
end
make_room()
call('HSET', ENTRY, 'state', 'cancelled', 'token', TOKEN)
tell()
return 1
