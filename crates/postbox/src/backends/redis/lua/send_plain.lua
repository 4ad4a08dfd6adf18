-- Stores plain messages: without delay, expiry, group, chosen id or deduplication id. Continues
-- with `send.lua` if a message is not plain, if the mailbox has a limit, or if messages are due.
--
-- ARGV: 6 `1` if all messages are plain. Then for each message: its id, its body and, unless all
-- are plain, its delay in milliseconds and its options.
-- Returns whether the mailbox may be new, 1 or 0. `send.lua` returns a list: this number, and a
-- list that is empty if all messages were stored. Otherwise it has a result for each message:
--   nothing         the message was stored
--   `=` and an id   an earlier message has the same deduplication id or id, and this is its id
--   `id in use`     an earlier message has the same id and another body
--   `full` and n    the mailbox holds n messages, which is its limit
if replayed then
  -- A WAIT for replicas covers only earlier writes of its connection, so this attempt writes too. A
  -- server without memory lets a script continue after a first write that needs none.
  call('HDEL', META, '')
  call('HSET', META, OPERATION, last_operation)
  -- The lost response may have said that the mailbox was new.
  return { 1, replayed == '' and {} or cmsgpack.unpack(replayed) }
end

local sent_at = struct.pack('>I4I8', 0, now)

if ARGV[6] == '1' and not settings.max_size and not has_due_messages() then
  local stored = redis.pcall('HSET', DATA, unpack(ARGV, 7))
  if type(stored) == 'table' then
    -- The server refused the first write, so nothing is stored.
    return stored
  end
  local entries = {}
  for i = 7, #ARGV, 2 do
    entries[#entries + 1] = with_next_rank('\0\0\0\0' .. ARGV[i] .. sent_at)
  end
  call('RPUSH', PENDING, unpack(entries))
  ready_count = #entries
  ensure_mailbox()
  finish_operation('')
  return is_new and 1 or 0
end
