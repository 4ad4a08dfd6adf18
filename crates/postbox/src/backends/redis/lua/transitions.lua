-- What can become of a message. Spliced into the verbs after their quick path.
local DELAYED, SPECIAL, EXPIRING, BEHIND, HEADS = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local DEAD, GRAVES, DEDUP, DEDUPS = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local SPENT = '@SPENT@'
local out, ticks = {}, 0

local function tick()
  ticks = ticks + 1
  return now + ticks
end

local function id_of(entry)
  return sub(entry, 5, 20)
end

local function record_of(entry)
  if byte(entry, 1) % 4 == 0 then
    return nil
  end
  local packed = call('HGET', SPECIAL, id_of(entry))
  return packed and cmsgpack.unpack(packed)
end

local function keep(entry, record, state)
  if record then
    record.s, record.e = state, entry
    call('HSET', SPECIAL, id_of(entry), cmsgpack.pack(record))
  end
end

-- These are leased from now on.
local function keep_leased(members)
  for _, member in ipairs(members) do
    local entry = sub(member, 2)
    keep(entry, record_of(entry), 'L')
  end
end

-- What became visible goes to the tail, in order.
local function flush()
  for from = 1, #out, 1000 do
    call('RPUSH', PENDING, unpack(out, from, math.min(from + 999, #out)))
  end
  woken = woken + #out
  out = {}
end

local function prefix_of(group)
  return struct.pack('>I4', #group) .. group
end

local function is_spent(entry)
  return max_deliveries and struct.unpack('>I3', entry, 2) >= max_deliveries
end

-- A message that has expired goes with the others that have, in the order of those moments: `expire` does it.
local function expire_later(entry, record)
  call('ZADD', EXPIRING, record.x, id_of(entry))
  keep(entry, record, 'X')
end

-- Takes out what is stored of a message.
local function drop(entry, record)
  local id = id_of(entry)
  call('HDEL', DATA, id)
  if record then
    call('HDEL', SPECIAL, id)
    if record.x then
      call('ZREM', EXPIRING, id)
    end
  end
end

-- Makes a dead letter of a message.
local function inter(entry, record, reason)
  local id = id_of(entry)
  local letter = { e = entry, r = reason, t = now, b = call('HGET', DATA, id), g = record and record.g or nil }
  call('ZADD', DEAD, tick(), id)
  call('HSET', GRAVES, id, cmsgpack.pack(letter))
  drop(entry, record)
end

-- A message can be delivered.
local function show(entry, record)
  entry = ranked(entry)
  out[#out + 1] = entry
  keep(entry, record, 'P')
end

-- The group's head is gone: the next one that may be delivered takes its place.
local function go_on(group)
  local prefix = prefix_of(group)
  while true do
    local next = call('ZRANGEBYLEX', BEHIND, '[' .. prefix, '[' .. prefix .. string.rep('\255', 9), 'LIMIT', 0, 1)[1]
    if not next then
      call('HDEL', HEADS, group)
      return
    end
    call('ZREM', BEHIND, next)
    local entry = sub(next, #prefix + 9)
    local record = record_of(entry)
    if not is_spent(entry) then
      return show(entry, record)
    end
    inter(entry, record, SPENT)
  end
end

-- A message has left its place; if it was the head of its group, the next one goes on.
local function leave(record)
  if record and record.g and record.s ~= 'B' and record.s ~= 'D' then
    go_on(record.g)
  end
end

local function forget(entry, record)
  drop(entry, record)
  leave(record)
end

local function bury(entry, record, reason)
  inter(entry, record, reason)
  leave(record)
end

-- A message can be delivered, unless its deliveries are spent or its time is up.
local function surface(entry, record)
  if is_spent(entry) then
    bury(entry, record, SPENT)
  elseif record and record.x and record.x <= now then
    expire_later(entry, record)
  else
    show(entry, record)
  end
end

-- Puts messages back that no handler has seen: where they were, and as often delivered as before.
local function release(entries)
  local function rank_of(entry)
    local upper, next = byte(entry, 25, 26)
    return (upper * 8 + math.floor(next / 32)) * 4294967296 + struct.unpack('>I4', entry, 21)
  end
  local released = {}
  for i, entry in ipairs(entries) do
    local record = record_of(entry)
    local flags, count = byte(entry, 1), struct.unpack('>I3', entry, 2)
    -- After 63 releases the next one counts, so that the receipt is another one.
    local generation = math.floor(flags / 4) + 1
    if generation == 64 then
      generation = 0
    else
      count = math.max(count - 1, 0)
    end
    entry = string.char(flags % 4 + generation * 4) .. struct.pack('>I3', count) .. sub(entry, 5)
    keep(entry, record, 'P')
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
  woken = woken + #entries
end

-- A message is visible for the first time.
local function join(entry, record)
  if record and record.g then
    if call('HSETNX', HEADS, record.g, 1) == 0 then
      record.m = prefix_of(record.g) .. struct.pack('>I8', tick()) .. entry
      call('ZADD', BEHIND, 0, record.m)
      return keep(entry, record, 'B')
    end
    record.s = 'P'
  end
  surface(entry, record)
end

-- Lets go what has expired, in the order of those moments.
local function expire()
  while has_expiring do
    local expired = call('ZRANGEBYSCORE', EXPIRING, '-inf', now, 'LIMIT', 0, 500)
    if #expired == 0 then
      break
    end
    call('ZREM', EXPIRING, unpack(expired))
    for _, id in ipairs(expired) do
      local packed = call('HGET', SPECIAL, id)
      local record = packed and cmsgpack.unpack(packed)
      -- While it is being delivered it stays; what comes back is looked at then.
      if record and record.s ~= 'L' then
        if record.s == 'P' then
          call('HINCRBY', META, 'tombs', 1)
        elseif record.s == 'B' then
          call('ZREM', BEHIND, record.m)
        elseif record.s ~= 'X' then
          call('ZREM', INVISIBLE, record.s .. record.e)
          call('HDEL', DELAYED, id)
        end
        forget(record.e, record)
      end
    end
    flush()
  end
end

-- Does what is due: ends leases and delays, in the order of their moments, then lets go what has expired.
local function promote()
  if not is_due() then
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
        local record = record_of(entry)
        if kind == 'D' then join(entry, record) else surface(entry, record) end
      end
      if #undelayed > 0 then
        call('HDEL', DELAYED, unpack(undelayed))
      end
      flush()
    end
  until #ended < 500
  is_due()
  expire()
end

local function total()
  local tombs = tonumber(call('HGET', META, 'tombs')) or 0
  return call('LLEN', PENDING) - tombs + call('ZCARD', INVISIBLE) + call('ZCARD', BEHIND)
end
