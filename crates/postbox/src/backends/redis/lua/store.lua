-- Stores plain messages, whose ids and texts are in ARGV from first to last. Answers the server's error if it refuses the
-- first write: then nothing is stored.
local function store(first, last_index)
  local stored = redis.pcall('HSET', DATA, unpack(ARGV, first, last_index))
  if type(stored) == 'table' then
    return stored
  end
  local entries, sent_at = {}, struct.pack('>I4I8', 0, now)
  for i = first, last_index, 2 do
    entries[#entries + 1] = with_next_rank('\0\0\0\0' .. ARGV[i] .. sent_at)
  end
  call('RPUSH', PENDING, unpack(entries))
  ready_count = ready_count + #entries
end
