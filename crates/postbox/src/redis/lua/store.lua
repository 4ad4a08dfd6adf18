-- Stores plain messages, whose ids and texts are in ARGV from first to last. Answers the server's error if it refuses the
-- first write: then nothing is stored. Spliced into the verbs that send.

-- Larger messages are not pushed.
local LARGE = 65536

-- Hands messages to clients that wait, one client after the other: leases for them, as if they had asked for it now, and tells
-- them what they have. One that does not listen is gone. Answers which message is the first that is left.
local function hand_over(stamp, first, last)
  local rest = waits
  while first < last and rest ~= '' do
    local size = byte(rest)
    local client, token = sub(rest, 2, size + 1), sub(rest, size + 2, size + 9)
    local most, lease, following = struct.unpack('>I4I8', rest, size + 10)
    local leased, parts, bytes, upto = {}, { token, struct.pack('>I8', now) }, 0, first
    while upto < last and #leased < most do
      local body = ARGV[upto + 1]
      bytes = bytes + #body
      if bytes > LARGE then
        break
      end
      leased[#leased + 1] = 'L\0\0\0\1' .. ARGV[upto] .. stamp
      parts[#parts + 1] = leased[#leased] .. struct.pack('>I4', #body) .. body
      upto = upto + 2
    end
    if #leased == 0 then
      break
    end
    rest = sub(rest, following)
    if listens(client) and type(redis.pcall(PUBLISH, channel_of(client), table.concat(parts))) == 'number' then
      local till, leases = now + lease * 2000, {}
      for i = 1, #leased do
        leases[2 * i - 1], leases[2 * i] = string.format('%d', till + i), leased[i]
      end
      hide(till, unpack(leases))
      -- Should it be lost on the way: whoever asks again with this token is told again.
      local memory = token .. seconds .. string.format('%d', #leased) .. ';' .. table.concat(leased)
      call('HSET', META, 'op:' .. client .. ':wait', memory)
      first = upto
    end
  end
  if rest ~= waits then
    let_wait(rest)
  end
  return first
end

-- Those who wait elsewhere are handed what is stored, unless something else comes before it, or `keeps` is set.
local function store(nonce, first, last, keeps)
  local entries, stamp = {}, nonce .. struct.pack('>I8', now)
  local stored = redis.pcall('HSET', DATA, unpack(ARGV, first, last))
  if type(stored) == 'table' then
    return stored
  end
  if waits and not keeps and call('LLEN', PENDING) == 0 then
    first = hand_over(stamp, first, last)
  end
  for i = first, last, 2 do
    entries[#entries + 1] = '\0\0\0\0' .. ARGV[i] .. stamp
  end
  if #entries > 0 then
    call('RPUSH', PENDING, unpack(entries))
    woken = woken + #entries
  end
end
