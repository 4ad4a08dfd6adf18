-- What can become of a message. Spliced into the verbs after their quick path.
local DELAYED, SPECIAL, EXPIRING, BEHIND, HEADS = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local DEAD, GRAVES, DEDUP, DEDUPS = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local SPENT = '@SPENT@'
local out, ticks = {}, 0
local surface

local function tick()
  ticks = ticks + 1
  return now + ticks
end

local function id_of(entry)
  return sub(entry, 5, 20)
end

local function record_of(entry)
  if byte(entry, 1) == 0 then
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

-- The group's head is gone: the next one takes its place.
local function go_on(group)
  local prefix = prefix_of(group)
  local next = call('ZRANGEBYLEX', BEHIND, '[' .. prefix, '[' .. prefix .. string.rep('\255', 9), 'LIMIT', 0, 1)[1]
  if next then
    call('ZREM', BEHIND, next)
    local entry = sub(next, #prefix + 9)
    surface(entry, record_of(entry))
  else
    call('HDEL', HEADS, group)
  end
end

-- A message is gone from where it was.
local function forget(entry, record)
  local id = id_of(entry)
  call('HDEL', DATA, id)
  if record then
    call('HDEL', SPECIAL, id)
    if record.x then
      call('ZREM', EXPIRING, id)
    end
    if record.g and record.s ~= 'B' and record.s ~= 'D' then
      go_on(record.g)
    end
  end
end

local function bury(entry, record, reason)
  local id = id_of(entry)
  local letter = { e = entry, r = reason, t = now, b = call('HGET', DATA, id), g = record and record.g or nil }
  call('ZADD', DEAD, tick(), id)
  call('HSET', GRAVES, id, cmsgpack.pack(letter))
  forget(entry, record)
end

-- A message can be delivered, unless its deliveries are spent or its time is up.
surface = function(entry, record)
  if max_deliveries and struct.unpack('>I3', entry, 2) >= max_deliveries then
    bury(entry, record, SPENT)
  elseif record and record.x and record.x <= now then
    forget(entry, record)
  else
    out[#out + 1] = entry
    keep(entry, record, 'P')
  end
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
        else
          call('ZREM', INVISIBLE, record.s .. record.e)
          call('HDEL', DELAYED, id)
        end
        forget(record.e, record)
      end
    end
    flush()
  end
end

local function total()
  local tombs = tonumber(call('HGET', META, 'tombs')) or 0
  return call('LLEN', PENDING) - tombs + call('ZCARD', INVISIBLE) + call('ZCARD', BEHIND)
end
