-- Stores plain messages: without delay, expiry, group, own id or deduplication id. Continues with `send.lua` if a
-- message is not plain, if the mailbox has a limit, or if messages are due.
--
-- ARGV: 6 `1` if all messages are plain; then the id and the body of each message, followed by its delay in
-- milliseconds and its options unless all are plain.
-- Returns 1 or 0: whether the mailbox may be new. Unless all messages were stored, a list of this number and a result
-- for each message: nothing, `=` and the id of the first one, `id in use`, or `full` and the limit.
if replayed then
  -- A WAIT for replicas covers only earlier writes of its connection, so this attempt writes too. A server without
  -- memory lets a script continue after a first write that needs none.
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
