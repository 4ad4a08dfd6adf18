-- Stores messages. ARGV: 5 whether all are plain, then id and message of each, and, unless all are plain, its
-- delay in milliseconds and what it asks for. Answers whether the mailbox may be new; with what came of each message, unless all
-- are simply stored.
if replayed then
  -- A write, so that whoever waits for replicas on this connection waits for it; and before it one that needs no memory.
  call('HDEL', META, '')
  call('HSET', META, OPERATION, last_operation)
  -- That the mailbox was new may have been in the answer that is lost.
  return { 1, replayed == '' and {} or cmsgpack.unpack(replayed) }
end

--@store

if ARGV[5] == '1' and not max_size and not has_due_messages() then
  local refusal = store(6, #ARGV)
  if refusal then
    return refusal
  end
  ensure_mailbox()
  finish_operation('')
  return is_new and 1 or 0
end

--@messages

local sent_at = struct.pack('>I4I8', 0, now)

-- The message with an id that the mailbox holds, dead letters included.
local function find_held(id)
  local grave = call('HGET', DEAD_LETTERS, id)
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

promote_due()
local size = max_size and message_count()
local results, is_plain = {}, true
local step = ARGV[5] == '1' and 2 or 4
for i = 6, #ARGV, step do
  local id, body = ARGV[i], ARGV[i + 1]
  local delay = step == 4 and tonumber(ARGV[i + 2]) or 0
  local options = step == 4 and ARGV[i + 3] ~= '' and cmsgpack.unpack(ARGV[i + 3]) or {}
  local result = ''
  if options.d then
    local seen = call('HGET', DEDUPLICATION, options.d)
    if seen and struct.unpack('>I8', seen) > now then
      result = '=' .. sub(seen, 9)
    end
  end
  if result == '' and options.i then
    local held = find_held(id)
    if held then
      result = body_of(held) == body_of(body) and '=' .. id or 'id in use'
    end
  end
  if result == '' and max_size and size >= max_size then
    result = 'full ' .. string.format('%.0f', max_size)
  end
  if result == '' then
    call('HSET', DATA, id, body)
    if options.d then
      local old = call('ZRANGEBYSCORE', DEDUPLICATION_EXPIRIES, '-inf', now, 'LIMIT', 0, 100)
      if #old > 0 then
        call('ZREM', DEDUPLICATION_EXPIRIES, unpack(old))
        call('HDEL', DEDUPLICATION, unpack(old))
      end
      local till = now + deduplication_window * 2000
      call('HSET', DEDUPLICATION, options.d, struct.pack('>I8', till) .. id)
      call('ZADD', DEDUPLICATION_EXPIRIES, till, options.d)
      -- With the last of them the keys go.
      local longest = string.format('%d', math.ceil(call('ZRANGE', DEDUPLICATION_EXPIRIES, -1, -1, 'WITHSCORES')[2] / 2000))
      call('PEXPIREAT', DEDUPLICATION, longest)
      call('PEXPIREAT', DEDUPLICATION_EXPIRIES, longest)
    end
    local flags = (options.x and 1 or 0) + (options.g and 2 or 0)
    local entry = string.char(flags) .. '\0\0\0' .. id .. sent_at
    local record = nil
    if flags > 0 then
      record = { x = options.x and now + options.x * 2000 or nil, g = options.g }
      if options.x then
        call('ZADD', EXPIRING, record.x, id)
        ensure_mailbox('expiring', 1)
        has_expiring = true
      end
    end
    if delay > 0 then
      local till = unique_moment() + delay * 2000
      add_invisible(till, till, 'D' .. entry)
      call('HSET', DELAYED, id, 'D' .. entry)
      write_record(entry, record, 'D')
      is_deadline_added = true
    else
      enqueue(entry, record)
    end
    size = size and size + 1
  else
    is_plain = false
  end
  results[#results + 1] = result
end
push_ready()
ensure_mailbox()
finish_operation(is_plain and '' or cmsgpack.pack(results))
return { is_new and 1 or 0, is_plain and {} or results }
