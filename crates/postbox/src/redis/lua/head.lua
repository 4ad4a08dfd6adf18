-- The beginning of every verb of a mailbox.
--
-- Time is the server's, in half microseconds since 1970: fine enough to order what one script does, and exact in a double.
-- An entry is 32 bytes: flags (1: expires, 2: has a group), how often delivered (3), id (16), nonce (4), time of sending (8).
--   pending    list    entries that can be delivered, in order; an entry whose data is gone is skipped (a tombstone)
--   invisible  zset    a letter and an entry, by the moment at which it ends: L leased, D delayed, R given back with a delay
--   data       hash    id -> message
--   meta       hash    settings, number of tombstones, `made` once the mailbox exists
--   op         string  the last operation of this client's lane, and what it came to: asked again, it is not done again
--   delayed    hash    id -> member of invisible, for D and R
--   special    hash    id -> what only messages with an expiry or a group have
--   expiring   zset    ids by the moment at which they expire
--   behind     zset    members of groups behind the one at the head, in the order of group and arrival
--   heads      hash    group -> 1 while one of its messages is pending, leased or given back
--   dead       zset    ids of dead letters by the moment of death; graves, a hash, has them
--   dedup      hash    deduplication id -> until when, and the id of the first message; dedups orders them by that moment
local META, PENDING, INVISIBLE, DATA, OP = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local TOKEN, SETTINGS, PUBLISH, CHANNEL = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local call, sub, byte = redis.call, string.sub, string.byte
local time = call('TIME')
local now = time[1] * 2000000 + time[2] * 2
local NOW = string.format('%d', now)
local last = call('GET', OP)
local replay = last and sub(last, 1, 8) == TOKEN and sub(last, 9)
-- The tokens of a lane grow. An older one is of a request that comes late: its answer was given to another attempt.
if last and not replay and struct.unpack('>I8', last) > struct.unpack('>I8', TOKEN) then
  return redis.error_reply('LATE a later operation of this client was done')
end
local meta = call('HMGET', META, 'made', 'max_size', 'max_deliveries', 'window', 'idle', 'expiring', 'tombs')
local is_new = not meta[1]
local max_size, max_deliveries = tonumber(meta[2]), tonumber(meta[3])
local window, idle, has_expiring = tonumber(meta[4]) or 300000, tonumber(meta[5]), meta[6]
local looked, woken = false, 0

if SETTINGS ~= '' then
  if not string.find(OP, ':send$') then
    -- A write that needs no memory. After it a script may go on when there is none: consumers make room.
    call('HDEL', META, '')
  end
  for name, value in string.gmatch(SETTINGS, '([%a_]+) (%d+)') do
    call('HSET', META, name, value)
    value = tonumber(value)
    if name == 'max_size' then max_size = value
    elseif name == 'max_deliveries' then max_deliveries = value
    elseif name == 'window' then window = value
    elseif name == 'idle' then idle = value end
  end
  call('HSET', META, 'made', 1)
end

-- The end of every verb: the operation is remembered, those who wait are told, what is idle later lives on.
local function finish(result)
  if result then
    redis.pcall('SET', OP, TOKEN .. result, 'PX', '600000')
  end
  if woken > 0 or looked then
    redis.pcall(PUBLISH, CHANNEL, looked and 0 or woken)
  end
  if idle then
    for i = 1, #KEYS do
      call('PEXPIRE', KEYS[i], idle)
    end
  end
end

local function is_due()
  return has_expiring or #call('ZRANGEBYSCORE', INVISIBLE, '-inf', NOW, 'LIMIT', '0', '1') > 0
end
