-- The beginning of every verb of a mailbox.
--
-- Time is the server's, in half microseconds since 1970: fine enough to order what one script does, and exact in a double.
-- An entry is 32 bytes: flags (1: expires, 2: has a group), how often delivered (3), id (16), nonce (4), time of sending (8).
--   pending    list    entries that can be delivered, in order; an entry whose data is gone is skipped (a tombstone)
--   invisible  zset    a letter and an entry, by the moment at which it ends: L leased, D delayed, R given back with a delay
--   data       hash    id -> message
--   meta       hash    `made` once the mailbox exists: its settings; `tombs`: the number of tombstones; `due`: nothing in
--                      invisible ends before it (not known: look); `op:CLIENT:SLOT`: the token of that slot's last
--                      operation, when it was done (in seconds, 10 bytes), and what it came to: asked again, it is not
--                      done again; `swept`: how far those are looked through that can be forgotten; `waits`: clients to
--                      which the next messages are handed, first come first: of each the length of its name, the name, the
--                      token with which it asked (8), how many it takes (4), and for how many milliseconds (8)
--   delayed    hash    id -> member of invisible, for D and R
--   special    hash    id -> what only messages with an expiry or a group have
--   expiring   zset    ids by the moment at which they expire
--   behind     zset    members of groups behind the one at the head, in the order of group and arrival
--   heads      hash    group -> 1 while one of its messages is pending, leased or given back
--   dead       zset    ids of dead letters by the moment of death; graves, a hash, has them
--   dedup      hash    deduplication id -> until when, and the id of the first message; dedups orders them by that moment
local META, PENDING, INVISIBLE, DATA = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local TOKEN, SETTINGS, PUBLISH, OP = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- For so many seconds operations are remembered.
local MEMORY = 600
-- A moment that does not come.
local NEVER = 9007199254740991
local call, sub, byte = redis.call, string.sub, string.byte
local time = call('TIME')
local seconds = time[1]
local now = seconds * 2000000 + time[2] * 2
local meta = call('HMGET', META, 'made', 'due', OP, 'waits')
local made, due, last, waits = meta[1], tonumber(meta[2]), meta[3], meta[4]
local is_new, is_looked_at = not made, false
local replay
if last then
  local past, present = struct.unpack('>I8', last), struct.unpack('>I8', TOKEN)
  if past == present then
    replay = sub(last, 19)
  elseif past > present then
    -- The tokens of a slot grow. An older one is of a request that comes late: its answer was given to another attempt.
    return redis.error_reply('LATE a later operation of this client was done')
  end
end
local looked, woken = false, 0

-- The mailbox is there, and has this setting.
local function make(name, value)
  local setting = name and name .. ' ' .. value .. ' ' or ''
  if made and string.find(made, setting, 1, true) then
    return
  end
  made = (made and name and string.gsub(made, name .. ' %d+ ', '') or '') .. setting
  if VERB ~= 'send' then
    -- A write that needs no memory. After it a script may go on when there is none: consumers make room.
    call('HDEL', META, '')
  end
  call('HSET', META, 'made', made)
  if is_new then
    redis.pcall('PERSIST', META)
  end
end

if SETTINGS ~= '' and not replay then
  for name, value in string.gmatch(SETTINGS, '([%a_]+) (%d+)') do
    make(name, value)
  end
end
local max_size, max_deliveries, window, idle, has_expiring = nil, nil, 300000, nil, false
if made and made ~= '' then
  for name, value in string.gmatch(made, '([%a_]+) (%d+)') do
    value = tonumber(value)
    if name == 'max_size' then max_size = value
    elseif name == 'max_deliveries' then max_deliveries = value
    elseif name == 'window' then window = value
    elseif name == 'idle' then idle = value
    elseif name == 'expiring' then has_expiring = true end
  end
end

-- The end of every verb: the operation is remembered, those who wait are told, what is idle later lives on.
local function finish(result)
  if result then
    local memory = TOKEN .. seconds .. result
    if is_looked_at then
      redis.pcall('HSET', META, OP, memory, 'due', string.format('%d', due))
    else
      redis.pcall('HSET', META, OP, memory)
    end
    if not last or sub(last, 9, 16) ~= sub(seconds, 1, 8) then
      -- Clients that are gone are forgotten: a part of them now, the next one at the next time.
      local page = redis.pcall('HSCAN', META, call('HGET', META, 'swept') or '0', 'MATCH', 'op:*', 'COUNT', '100')
      local gone = {}
      for i = 1, page.err and 0 or #page[2], 2 do
        if sub(page[2][i + 1], 9, 18) + MEMORY < tonumber(seconds) then
          gone[#gone + 1] = page[2][i]
        end
      end
      if #gone > 0 then
        call('HDEL', META, unpack(gone))
      end
      redis.pcall('HSET', META, 'swept', page[1] or '0')
    end
    if not made then
      call('PEXPIRE', META, MEMORY * 1000)
    end
  end
  if woken > 0 or looked then
    redis.pcall(PUBLISH, sub(META, 1, -5) .. 'wake', looked and '0' or string.format('%d', woken))
  end
  if idle then
    local till = string.format('%d', now / 2000 + idle)
    for i = 1, #KEYS do
      call('PEXPIREAT', KEYS[i], till)
    end
  end
end

-- Whether something has to be done before a verb. Looks when the next lease or delay ends, should that have come.
local function is_due()
  if not due or due <= now then
    due = tonumber(call('ZRANGE', INVISIBLE, '0', '0', 'WITHSCORES')[2] or NEVER)
    is_looked_at = true
  end
  return has_expiring or due <= now
end

-- From here on these wait to be handed messages.
local function let_wait(clients)
  waits = clients ~= '' and clients
  if waits then
    call('HSET', META, 'waits', waits)
  else
    call('HDEL', META, 'waits')
  end
end

-- Where a client hears what is handed to it, and whether it listens.
local function channel_of(client)
  return sub(META, 1, -5) .. client .. ':wake'
end
local function listens(client)
  local heard = redis.pcall('PUBSUB', 'NUMSUB', channel_of(client))
  return not heard.err and heard[2] > 0
end

-- Members of `invisible` with their moments, of which none is before the first.
local function hide(soonest, ...)
  if due and soonest < due then
    -- Before they are there, so that it is never too late.
    due = soonest
    call('HSET', META, 'due', string.format('%d', due))
  end
  call('ZADD', INVISIBLE, ...)
end
