-- Leases messages, for several who ask at once. ARGV from 5: how many at most, and for how many milliseconds, of each.
-- Answers the moment, when to look again, how many each gets and after a semicolon their members, and then their messages, one
-- by one: the server takes long to write lists in lists.
local FIRST = 5

--@take

if replayed then
  replay_leases(replayed)
  return { now, -1, table.concat(counts, ',') .. ';' .. table.concat(members), unpack(bodies) }
end

local function answer()
  local leased = table.concat(counts, ',') .. ';' .. table.concat(members)
  -- Nothing is an answer too: should this request come a second time, late, it must not lease for nobody.
  finish_operation(leased)
  return { now, next_look(), leased, unpack(bodies) }
end

local is_quick = not has_due_messages()
if is_quick then
  lease_ready()
  if not has_special then
    return answer()
  end
end

--@messages

if not is_quick then
  promote_due()
  lease_ready()
end
mark_leased(members)
-- Those who asked here take what has come back; others need not be told of that.
ready_count = math.max(0, ready_count - #members)
return answer()
