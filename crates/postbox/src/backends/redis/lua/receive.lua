-- Leases messages, for several who ask at once. ARGV from 5: how many at most, and for how many milliseconds, of each.
-- Answers the moment, when to look again, how many each gets and after a semicolon their members, and then their messages, one
-- by one: the server takes long to write lists in lists.
local FIRST = 5

--@take

if replay then
  take_again(replay)
  return { now, -1, table.concat(counts, ',') .. ';' .. table.concat(members), unpack(bodies) }
end

local function answer()
  local leased = table.concat(counts, ',') .. ';' .. table.concat(members)
  -- Nothing is an answer too: should this request come a second time, late, it must not lease for nobody.
  finish(leased)
  return { now, next_due(), leased, unpack(bodies) }
end

local is_quick = not is_due()
if is_quick then
  take()
  if not has_special then
    return answer()
  end
end

--@messages

if not is_quick then
  promote()
  take()
end
keep_leased(members)
-- Those who asked here take what has come back; others need not be told of that.
woken = math.max(0, woken - #members)
return answer()
