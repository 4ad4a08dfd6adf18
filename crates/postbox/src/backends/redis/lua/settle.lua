-- Acts on deliveries. ARGV: 5 whether all are acknowledgements; then their members, or an act (A acknowledge, R give back
-- after milliseconds, E extend by milliseconds, D dead-letter for a reason, U undo the delivery), its member and its argument, of
-- each.
-- Answers 1 or 0 for each: done, or its lease has ended.
if replayed then
  return replayed
end

local is_plain = ARGV[5] == '1'
for i = 6, is_plain and #ARGV or 5 do
  is_plain = is_plain and byte(ARGV[i], 2) % 4 == 0
end
if is_plain then
  --@acknowledge
  local results = acknowledge(6, #ARGV)
  finish_operation(results)
  return results
end

--@messages

promote_due()
local results, released = {}, {}
local step = ARGV[5] == '1' and 1 or 3
for i = 6, #ARGV, step do
  local act, member, argument = 'A', ARGV[i], nil
  if step == 3 then
    act, member, argument = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  end
  local till = tonumber(call('ZSCORE', INVISIBLE, member))
  if till and till > now then
    local entry = sub(member, 2)
    local record = read_record(entry)
    if act == 'E' then
      local longer = unique_moment() + argument * 2000
      if longer > till then
        -- Taken out first: a server without memory would refuse to begin with an addition.
        call('ZREM', INVISIBLE, member)
        call('ZADD', INVISIBLE, longer, member)
      end
    else
      call('ZREM', INVISIBLE, member)
      if act == 'A' then
        delete_message(entry, record)
      elseif act == 'D' then
        dead_letter(entry, record, argument)
      elseif act == 'U' then
        if record and record.x and record.x <= now then
          mark_expired(entry, record)
        else
          released[#released + 1] = entry
        end
      elseif argument == '0' then
        make_visible(entry, record)
      elseif record and record.x and record.x <= now then
        delete_message(entry, record)
      else
        local back = unique_moment() + argument * 2000
        add_invisible(back, back, 'R' .. entry)
        call('HSET', DELAYED, id_of(entry), 'R' .. entry)
        write_record(entry, record, 'R')
        is_deadline_added = true
      end
    end
    results[#results + 1] = '1'
  else
    results[#results + 1] = '0'
  end
end
push_ready()
release_entries(released)
delete_expired()
results = table.concat(results)
finish_operation(results)
return results
