-- Acknowledges plain deliveries. Continues with `settle.lua` if a message expires or has a group,
-- or if an operation is not an acknowledgement.
--
-- ARGV: 6 `1` if all are acknowledgements. Then for each delivery its member of `invisible` or,
-- unless all are acknowledgements, an operation, the member and an argument. Operations:
--   A acknowledge                 R return after milliseconds      E extend by milliseconds
--   D dead-letter for a reason    U release: undo the delivery
-- Returns one character for each delivery: 1 if it is settled, 0 if its lease has ended.
if replayed then return replayed end

local is_plain = ARGV[6] == '1'
for i = 7, is_plain and #ARGV or 6 do
  is_plain = is_plain and byte(ARGV[i], 2) % 4 == 0
end
if is_plain then
  local results, ids = {}, {}
  if #ARGV < 23 and next_deadline and next_deadline > now then
    -- No lease has ended, so a member that is present is leased. For up to 16 members, one ZREM
    -- each is faster.
    for i = 7, #ARGV do
      local is_leased = call('ZREM', INVISIBLE, ARGV[i]) == 1
      results[#results + 1] = is_leased and '1' or '0'
      ids[#ids + 1] = is_leased and sub(ARGV[i], 6, 21) or nil
    end
  else
    local leased, seen = {}, {}
    for i, deadline in ipairs(call('ZMSCORE', INVISIBLE, unpack(ARGV, 7))) do
      local member = ARGV[6 + i]
      if deadline and tonumber(deadline) > now and not seen[member] then
        seen[member] = true
        leased[#leased + 1], ids[#ids + 1] = member, sub(member, 6, 21)
        results[i] = '1'
      else
        results[i] = '0'
      end
    end
    if #leased > 0 then call('ZREM', INVISIBLE, unpack(leased)) end
  end
  if #ids > 0 then call('HDEL', DATA, unpack(ids)) end
  results = table.concat(results)
  finish_operation(results)
  return results
end
