-- Acts on deliveries. ARGV: 5 whether all are acknowledgements; then their members, or an act (A acknowledge, R give back
-- after milliseconds, E extend by milliseconds, D dead-letter for a reason), its member and its argument, of each.
-- Answers 1 or 0 for each: done, or its lease has ended.
if replay then
  return replay
end

if ARGV[5] == '1' then
  local scores = call('ZMSCORE', INVISIBLE, unpack(ARGV, 6))
  local results, ids, gone, seen, is_plain = {}, {}, {}, {}, true
  for i = 1, #scores do
    local member = ARGV[5 + i]
    if scores[i] and tonumber(scores[i]) > now and not seen[member] then
      seen[member] = true
      is_plain = is_plain and byte(member, 2) == 0
      gone[#gone + 1], ids[#ids + 1] = member, sub(member, 6, 21)
      results[i] = '1'
    else
      results[i] = '0'
    end
  end
  if is_plain then
    if #gone > 0 then
      call('ZREM', INVISIBLE, unpack(gone))
      call('HDEL', DATA, unpack(ids))
    end
    results = table.concat(results)
    finish(results)
    return results
  end
end

--@messages

promote()
local results = {}
local step = ARGV[5] == '1' and 1 or 3
for i = 6, #ARGV, step do
  local act, member, argument = 'A', ARGV[i], nil
  if step == 3 then
    act, member, argument = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  end
  local till = tonumber(call('ZSCORE', INVISIBLE, member))
  if till and till > now then
    local entry = sub(member, 2)
    local record = record_of(entry)
    if act == 'E' then
      local longer = tick() + argument * 2000
      if longer > till then
        -- Taken out first: a server without memory would refuse to begin with an addition.
        call('ZREM', INVISIBLE, member)
        call('ZADD', INVISIBLE, longer, member)
      end
    else
      call('ZREM', INVISIBLE, member)
      if act == 'A' then
        forget(entry, record)
      elseif act == 'D' then
        bury(entry, record, argument)
      elseif argument == '0' then
        surface(entry, record)
      elseif record and record.x and record.x <= now then
        forget(entry, record)
      else
        local back = tick() + argument * 2000
        hide(back, back, 'R' .. entry)
        call('HSET', DELAYED, id_of(entry), 'R' .. entry)
        keep(entry, record, 'R')
        looked = true
      end
    end
    results[#results + 1] = '1'
  else
    results[#results + 1] = '0'
  end
end
flush()
results = table.concat(results)
finish(results)
return results
