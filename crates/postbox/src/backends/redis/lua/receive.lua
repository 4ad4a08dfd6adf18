-- Leases messages of all kinds. `receive_plain.lua` describes the arguments and the result.
if not is_plain then
  promote_due()
  lease_ready()
end
mark_leased(members)
-- This request has leased these messages, so it wakes no other receiver for them.
ready_count = math.max(0, ready_count - #members)
return finish_receive()
