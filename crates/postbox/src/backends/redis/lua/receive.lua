-- Leases messages of all kinds. `receive_plain.lua` describes the arguments and the result.
if not is_plain then
  promote_due()
  lease_ready()
end
mark_leased(members)
-- Receives of this request have taken these messages, so no other receiver is woken for them.
ready_count = math.max(0, ready_count - #members)
return finish_receive()
