-- Stores messages. ARGV: 5 whether all are plain, then id and message of each, and, unless all are plain, its
-- delay in milliseconds and what it asks for. Answers whether the mailbox may be new; with what came of each message, unless all
-- are simply stored.
if replay then
  -- A write, so that whoever waits for replicas on this connection waits for it; and before it one that needs no memory.
  call('HDEL', META, '')
  call('HSET', META, OP, last)
  -- That the mailbox was new may have been in the answer that is lost.
  return { 1, replay == '' and {} or cmsgpack.unpack(replay) }
end

--@store

if ARGV[5] == '1' and not max_size and not is_due() then
  local refusal = store(6, #ARGV)
  if refusal then
    return refusal
  end
  make()
  finish('')
  return is_new and 1 or 0
end

--@messages

local sent_at = struct.pack('>I4I8', 0, now)

-- The message with an id that the mailbox holds, dead letters included.
local function held_by(id)
  local grave = call('HGET', GRAVES, id)
  return grave and cmsgpack.unpack(grave).b or call('HGET', DATA, id)
end

-- The body of a message in the wire format, without its headers.
local function body_of(message)
  if sub(message, 1, 3) ~= 'PB\1' then
    return message
  end
  local at = 4
  local function number()
    local sum, factor = 0, 1
    repeat
      local part = byte(message, at) or 0
      at, sum, factor = at + 1, sum + part % 128 * factor, factor * 128
    until part < 128
    return sum
  end
  for _ = 1, 2 * number() do
    local length = number()
    at = at + length
  end
  return sub(message, at)
end

promote()
local size = max_size and total()
local results, is_plain = {}, true
local step = ARGV[5] == '1' and 2 or 4
for i = 6, #ARGV, step do
  local id, body = ARGV[i], ARGV[i + 1]
  local delay = step == 4 and tonumber(ARGV[i + 2]) or 0
  local wish = step == 4 and ARGV[i + 3] ~= '' and cmsgpack.unpack(ARGV[i + 3]) or {}
  local result = ''
  if wish.d then
    local seen = call('HGET', DEDUP, wish.d)
    if seen and struct.unpack('>I8', seen) > now then
      result = '=' .. sub(seen, 9)
    end
  end
  if result == '' and wish.i then
    local held = held_by(id)
    if held then
      result = body_of(held) == body_of(body) and '=' .. id or 'id in use'
    end
  end
  if result == '' and max_size and size >= max_size then
    result = 'full ' .. string.format('%.0f', max_size)
  end
  if result == '' then
    call('HSET', DATA, id, body)
    if wish.d then
      local old = call('ZRANGEBYSCORE', DEDUPS, '-inf', now, 'LIMIT', 0, 100)
      if #old > 0 then
        call('ZREM', DEDUPS, unpack(old))
        call('HDEL', DEDUP, unpack(old))
      end
      local till = now + window * 2000
      call('HSET', DEDUP, wish.d, struct.pack('>I8', till) .. id)
      call('ZADD', DEDUPS, till, wish.d)
      -- With the last of them the keys go.
      local longest = string.format('%d', math.ceil(call('ZRANGE', DEDUPS, -1, -1, 'WITHSCORES')[2] / 2000))
      call('PEXPIREAT', DEDUP, longest)
      call('PEXPIREAT', DEDUPS, longest)
    end
    local flags = (wish.x and 1 or 0) + (wish.g and 2 or 0)
    local entry = string.char(flags) .. '\0\0\0' .. id .. sent_at
    local record = nil
    if flags > 0 then
      record = { x = wish.x and now + wish.x * 2000 or nil, g = wish.g }
      if wish.x then
        call('ZADD', EXPIRING, record.x, id)
        make('expiring', 1)
        has_expiring = true
      end
    end
    if delay > 0 then
      local till = tick() + delay * 2000
      hide(till, till, 'D' .. entry)
      call('HSET', DELAYED, id, 'D' .. entry)
      keep(entry, record, 'D')
      looked = true
    else
      join(entry, record)
    end
    size = size and size + 1
  else
    is_plain = false
  end
  results[#results + 1] = result
end
flush()
make()
finish(is_plain and '' or cmsgpack.pack(results))
return { is_new and 1 or 0, is_plain and {} or results }
