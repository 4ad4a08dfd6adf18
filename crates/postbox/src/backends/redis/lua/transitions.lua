-- What can become of a message. Spliced into the verbs after their quick path.
local DELAYED, RECORDS, EXPIRING, GROUP_WAITING, GROUP_HEADS = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local DEAD_LETTER_IDS, DEAD_LETTERS, DEDUPLICATION, DEDUPLICATION_EXPIRIES = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local DELIVERIES_SPENT = '@SPENT@'
local ready_entries, moments_used = {}, 0

local function unique_moment()
  moments_used = moments_used + 1
  return now + moments_used
end

local function id_of(entry)
  return sub(entry, 5, 20)
end

local function read_record(entry)
  if byte(entry, 1) % 4 == 0 then
    return nil
  end
  local packed = call('HGET', RECORDS, id_of(entry))
  return packed and cmsgpack.unpack(packed)
end

local function write_record(entry, record, state)
  if record then
    record.s, record.e = state, entry
    call('HSET', RECORDS, id_of(entry), cmsgpack.pack(record))
  end
end

-- These are leased from now on.
local function mark_leased(members)
  for _, member in ipairs(members) do
    local entry = sub(member, 2)
    write_record(entry, read_record(entry), 'L')
  end
end

-- What became visible goes to the tail, in order.
local function push_ready()
  for from = 1, #ready_entries, 1000 do
    call('RPUSH', PENDING, unpack(ready_entries, from, math.min(from + 999, #ready_entries)))
  end
  ready_count = ready_count + #ready_entries
  ready_entries = {}
end

local function group_prefix(group)
  return struct.pack('>I4', #group) .. group
end

local function has_spent_deliveries(entry)
  return max_deliveries and struct.unpack('>I3', entry, 2) >= max_deliveries
end

-- A message that has expired goes with the others that have, in the order of those moments: `expire` does it.
local function mark_expired(entry, record)
  call('ZADD', EXPIRING, record.x, id_of(entry))
  write_record(entry, record, 'X')
end

-- Takes out what is stored of a message.
local function delete_stored(entry, record)
  local id = id_of(entry)
  call('HDEL', DATA, id)
  if record then
    call('HDEL', RECORDS, id)
    if record.x then
      call('ZREM', EXPIRING, id)
    end
  end
end

-- Makes a dead letter of a message.
local function store_dead_letter(entry, record, reason)
  local id = id_of(entry)
  local letter = { e = entry, r = reason, t = now, b = call('HGET', DATA, id), g = record and record.g or nil }
  call('ZADD', DEAD_LETTER_IDS, unique_moment(), id)
  call('HSET', DEAD_LETTERS, id, cmsgpack.pack(letter))
  delete_stored(entry, record)
end

-- A message can be delivered.
local function make_ready(entry, record)
  entry = with_next_rank(entry)
  ready_entries[#ready_entries + 1] = entry
  write_record(entry, record, 'P')
end

-- The group's head is gone: the next one that may be delivered takes its place.
local function advance_group(group)
  local prefix = group_prefix(group)
  while true do
    local next = call('ZRANGEBYLEX', GROUP_WAITING, '[' .. prefix, '[' .. prefix .. string.rep('\255', 9), 'LIMIT', 0, 1)[1]
    if not next then
      call('HDEL', GROUP_HEADS, group)
      return
    end
    call('ZREM', GROUP_WAITING, next)
    local entry = sub(next, #prefix + 9)
    local record = read_record(entry)
    if not has_spent_deliveries(entry) then
      return make_ready(entry, record)
    end
    store_dead_letter(entry, record, DELIVERIES_SPENT)
  end
end

-- A message has left its place; if it was the head of its group, the next one goes on.
local function leave_group(record)
  if record and record.g and record.s ~= 'B' and record.s ~= 'D' then
    advance_group(record.g)
  end
end

local function delete_message(entry, record)
  delete_stored(entry, record)
  leave_group(record)
end

local function dead_letter(entry, record, reason)
  store_dead_letter(entry, record, reason)
  leave_group(record)
end

-- A message can be delivered, unless its deliveries are spent or its time is up.
local function make_visible(entry, record)
  if has_spent_deliveries(entry) then
    dead_letter(entry, record, DELIVERIES_SPENT)
  elseif record and record.x and record.x <= now then
    mark_expired(entry, record)
  else
    make_ready(entry, record)
  end
end

-- Puts messages back that no handler has seen: where they were, and as often delivered as before.
local function release_entries(entries)
  local function rank_of(entry)
    local upper, next = byte(entry, 25, 26)
    return (upper * 8 + math.floor(next / 32)) * 4294967296 + struct.unpack('>I4', entry, 21)
  end
  local released = {}
  for i, entry in ipairs(entries) do
    local record = read_record(entry)
    local flags, count = byte(entry, 1), struct.unpack('>I3', entry, 2)
    -- After 63 releases the next one counts, so that the receipt is another one.
    local generation = math.floor(flags / 4) + 1
    if generation == 64 then
      generation = 0
    else
      count = math.max(count - 1, 0)
    end
    entry = string.char(flags % 4 + generation * 4) .. struct.pack('>I3', count) .. sub(entry, 5)
    write_record(entry, record, 'P')
    released[i] = { rank_of(entry), entry }
  end
  -- The last one first: then each of the others is usually before all that is pending.
  table.sort(released, function(one, other) return one[1] > other[1] end)
  for _, one in ipairs(released) do
    local own_rank, entry = one[1], one[2]
    local at, behind = 0, nil
    repeat
      local some = call('LRANGE', PENDING, at, at == 0 and 0 or at + 99)
      for _, other in ipairs(some) do
        if rank_of(other) > own_rank then
          behind = other
          break
        end
      end
      at = at + #some
    until behind or #some == 0
    if behind and at == 1 then
      call('LPUSH', PENDING, entry)
    elseif behind then
      call('LINSERT', PENDING, 'BEFORE', behind, entry)
    else
      call('RPUSH', PENDING, entry)
    end
  end
  ready_count = ready_count + #entries
end

-- A message is visible for the first time.
local function enqueue(entry, record)
  if record and record.g then
    if call('HSETNX', GROUP_HEADS, record.g, 1) == 0 then
      record.m = group_prefix(record.g) .. struct.pack('>I8', unique_moment()) .. entry
      call('ZADD', GROUP_WAITING, 0, record.m)
      return write_record(entry, record, 'B')
    end
    record.s = 'P'
  end
  make_visible(entry, record)
end

-- Lets go what has expired, in the order of those moments.
local function delete_expired()
  while has_expiring do
    local expired = call('ZRANGEBYSCORE', EXPIRING, '-inf', now, 'LIMIT', 0, 500)
    if #expired == 0 then
      break
    end
    call('ZREM', EXPIRING, unpack(expired))
    for _, id in ipairs(expired) do
      local packed = call('HGET', RECORDS, id)
      local record = packed and cmsgpack.unpack(packed)
      -- While it is being delivered it stays; what comes back is looked at then.
      if record and record.s ~= 'L' then
        if record.s == 'P' then
          call('HINCRBY', META, 'tombs', 1)
        elseif record.s == 'B' then
          call('ZREM', GROUP_WAITING, record.m)
        elseif record.s ~= 'X' then
          call('ZREM', INVISIBLE, record.s .. record.e)
          call('HDEL', DELAYED, id)
        end
        delete_message(record.e, record)
      end
    end
    push_ready()
  end
end

-- Does what is due: ends leases and delays, in the order of their moments, then lets go what has expired.
local function promote_due()
  if not has_due_messages() then
    return
  end
  local ended
  repeat
    ended = call('ZRANGEBYSCORE', INVISIBLE, '-inf', now, 'LIMIT', 0, 500)
    if #ended > 0 then
      local undelayed = {}
      call('ZREM', INVISIBLE, unpack(ended))
      for _, member in ipairs(ended) do
        local kind, entry = sub(member, 1, 1), sub(member, 2)
        if kind ~= 'L' then
          undelayed[#undelayed + 1] = id_of(entry)
        end
        local record = read_record(entry)
        if kind == 'D' then enqueue(entry, record) else make_visible(entry, record) end
      end
      if #undelayed > 0 then
        call('HDEL', DELAYED, unpack(undelayed))
      end
      push_ready()
    end
  until #ended < 500
  has_due_messages()
  delete_expired()
end

local function message_count()
  local tombs = tonumber(call('HGET', META, 'tombs')) or 0
  return call('LLEN', PENDING) - tombs + call('ZCARD', INVISIBLE) + call('ZCARD', GROUP_WAITING)
end
