-- Settles deliveries of all kinds. `settle_plain.lua` describes the arguments and the result.
promote_due()
local results, released = {}, {}
local step = ARGV[6] == '1' and 1 or 3
for i = 7, #ARGV, step do
  local operation, member, argument = 'A', ARGV[i], nil
  if step == 3 then operation, member, argument = ARGV[i], ARGV[i + 1], ARGV[i + 2] end
  local deadline = tonumber(call('ZSCORE', INVISIBLE, member))
  if deadline and deadline > now then
    local entry = sub(member, 2)
    local record = read_record(entry)
    local is_expired = record and record.x and record.x <= now
    if operation == 'E' then
      local extended = unique_time() + argument * 2000
      if extended > deadline then
        -- The member is removed first, because a server without memory refuses a script whose first
        -- write needs memory.
        call('ZREM', INVISIBLE, member)
        call('ZADD', INVISIBLE, extended, member)
      end
    else
      call('ZREM', INVISIBLE, member)
      if operation == 'A' then
        delete_message(entry, record)
      elseif operation == 'D' then
        dead_letter(entry, record, argument)
      elseif operation == 'U' then
        if is_expired then
          mark_expired(entry, record)
        else
          released[#released + 1] = entry
        end
      elseif argument == '0' then
        make_visible(entry, record)
      elseif is_expired then
        delete_message(entry, record)
      else
        add_delayed('R', entry, record, argument)
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
