-- Finishes plain deliveries, whose members are in ARGV from first to last. Answers 1 or 0 for each: done, or its lease has
-- ended. Spliced into the verbs that act.
local function acknowledge(first, last_index)
  local results, ids = {}, {}
  if last_index - first < 16 and next_deadline and next_deadline > now then
    -- No lease is at its end, so what is leased may be finished: a few are sooner taken out one by one.
    for i = first, last_index do
      local is_leased = call('ZREM', INVISIBLE, ARGV[i]) == 1
      results[#results + 1] = is_leased and '1' or '0'
      ids[#ids + 1] = is_leased and sub(ARGV[i], 6, 21) or nil
    end
  else
    local gone, seen = {}, {}
    for i, score in ipairs(call('ZMSCORE', INVISIBLE, unpack(ARGV, first, last_index))) do
      local member = ARGV[first - 1 + i]
      if score and tonumber(score) > now and not seen[member] then
        seen[member] = true
        gone[#gone + 1], ids[#ids + 1] = member, sub(member, 6, 21)
        results[i] = '1'
      else
        results[i] = '0'
      end
    end
    if #gone > 0 then
      call('ZREM', INVISIBLE, unpack(gone))
    end
  end
  if #ids > 0 then
    call('HDEL', DATA, unpack(ids))
  end
  return table.concat(results)
end
