-- Shows what could be delivered now, in order. ARGV: 5 how many at most.
--@messages
promote_due()
finish_operation()
local entries, bodies, at, most = {}, {}, 0, tonumber(ARGV[5])
while #entries < most do
  local some = call('LRANGE', PENDING, at, at + 499)
  if #some == 0 then
    break
  end
  at = at + #some
  local found = read_bodies(some)
  for i = 1, #some do
    if found[i] and #entries < most then
      entries[#entries + 1], bodies[#bodies + 1] = some[i], found[i]
    end
  end
end
return { now, table.concat(entries), bodies }
