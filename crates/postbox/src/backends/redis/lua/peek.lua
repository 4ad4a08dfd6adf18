-- Reads the messages that could be delivered now, in order. ARGV: 6 the maximum.
-- Returns the time, the entries as one string, and the messages.
promote_due()
finish_operation()
local entries, bodies, at, max = {}, {}, 0, tonumber(ARGV[6])
while #entries < max do
  local page = call('LRANGE', PENDING, at, at + 499)
  if #page == 0 then break end
  at = at + #page
  local found = read_bodies(page)
  for i = 1, #page do
    if found[i] and #entries < max then
      entries[#entries + 1], bodies[#bodies + 1] = page[i], found[i]
    end
  end
end
return { now, table.concat(entries), bodies }
