-- Stores an answer. ARGV: 5 the answer, 6 its content type.
-- Returns `stored`, the state that refuses it, or nothing if there is no entry.
local found = call('HMGET', ENTRY, 'state', 'expires', 'token')
local state = current_state(found[1], found[2])
if state == 'resolved' and found[3] == TOKEN then
  return 'stored'
elseif state ~= 'pending' then
  return state
end
call('HSET', ENTRY, 'state', 'resolved', 'value', ARGV[5], 'type', ARGV[6], 'resolved', now, 'token', TOKEN)
publish()
return 'stored'
