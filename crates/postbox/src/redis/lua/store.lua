-- Stores plain messages, whose ids and texts are in ARGV from first to last. Answers the server's error if it refuses the
-- first write: then nothing is stored. Spliced into the verbs that send.
local function store(nonce, first, last)
  local entries, stamp = {}, nonce .. struct.pack('>I8', now)
  local stored = redis.pcall('HSET', DATA, unpack(ARGV, first, last))
  if type(stored) == 'table' then
    return stored
  end
  for i = first, last, 2 do
    entries[#entries + 1] = '\0\0\0\0' .. ARGV[i] .. stamp
  end
  call('RPUSH', PENDING, unpack(entries))
  woken = woken + #entries
end
