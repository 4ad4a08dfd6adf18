-- Stores messages of all kinds. `send_plain.lua` describes the arguments and the result.

-- Returns the message with an id, from the mailbox or from its dead letters.
local function stored_message(id)
  local packed = call('HGET', DEAD_LETTERS, id)
  return packed and cmsgpack.unpack(packed).b or call('HGET', DATA, id)
end

-- Returns the body of a message in the wire format, without its headers.
local function body_of(message)
  if sub(message, 1, 3) ~= 'PB\1' then return message end
  local at = 4
  local function read_varint()
    local sum, factor = 0, 1
    repeat
      local part = byte(message, at) or 0
      at, sum, factor = at + 1, sum + part % 128 * factor, factor * 128
    until part < 128
    return sum
  end
  for _ = 1, 2 * read_varint() do
    local length = read_varint()
    at = at + length
  end
  return sub(message, at)
end

promote_due()
local size = settings.max_size and message_count()
local results, is_all_stored = {}, true
local step = ARGV[6] == '1' and 2 or 4
for i = 7, #ARGV, step do
  local id, body = ARGV[i], ARGV[i + 1]
  local delay = step == 4 and tonumber(ARGV[i + 2]) or 0
  -- d: deduplication id, i: the caller chose the id, x: expires after milliseconds, g: group.
  local options = step == 4 and ARGV[i + 3] ~= '' and cmsgpack.unpack(ARGV[i + 3]) or {}
  local result = ''
  if options.d then
    local seen = call('HGET', DEDUPLICATION, options.d)
    if seen and struct.unpack('>I8', seen) > now then result = '=' .. sub(seen, 9) end
  end
  if result == '' and options.i then
    local stored = stored_message(id)
    if stored then
      result = body_of(stored) == body_of(body) and '=' .. id or 'id in use'
    end
  end
  if result == '' and size and size >= settings.max_size then
    result = 'full ' .. string.format('%.0f', settings.max_size)
  end
  if result == '' then
    call('HSET', DATA, id, body)
    if options.d then
      local ended = call('ZRANGEBYSCORE', DEDUPLICATION_ENDS, '-inf', now, 'LIMIT', 0, 100)
      if #ended > 0 then
        call('ZREM', DEDUPLICATION_ENDS, unpack(ended))
        call('HDEL', DEDUPLICATION, unpack(ended))
      end
      local window_end = now + settings.window * 2000
      call('HSET', DEDUPLICATION, options.d, struct.pack('>I8', window_end) .. id)
      call('ZADD', DEDUPLICATION_ENDS, window_end, options.d)
      local last_end = call('ZRANGE', DEDUPLICATION_ENDS, -1, -1, 'WITHSCORES')[2]
      local last_end_millis = string.format('%d', math.ceil(last_end / 2000))
      call('PEXPIREAT', DEDUPLICATION, last_end_millis)
      call('PEXPIREAT', DEDUPLICATION_ENDS, last_end_millis)
    end
    local flags = (options.x and 1 or 0) + (options.g and 2 or 0)
    local entry = string.char(flags) .. '\0\0\0' .. id .. sent_at
    local record = nil
    if flags > 0 then
      record = { x = options.x and now + options.x * 2000 or nil, g = options.g }
      if options.x then
        call('ZADD', EXPIRING, record.x, id)
        ensure_mailbox('expiring', 1)
        settings.expiring = 1
      end
    end
    if delay > 0 then
      add_delayed('D', entry, record, delay)
    else
      enqueue(entry, record)
    end
    size = size and size + 1
  else
    is_all_stored = false
  end
  results[#results + 1] = result
end
push_ready()
ensure_mailbox()
finish_operation(is_all_stored and '' or cmsgpack.pack(results))
return { is_new and 1 or 0, is_all_stored and {} or results }
