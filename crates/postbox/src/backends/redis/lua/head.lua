-- The beginning of every verb of a mailbox.
--
-- Time is in half microseconds since 1970; `time.lua` tells it.
-- An entry is 32 bytes: flags (1), how often delivered (3), id (16), rank and time of sending (12).
--   flags   1: expires, 2: has a group; the upper six bits count how often the message was released since it got its rank, so
--           that no two deliveries have the same entry
--   rank    43 bits: orders what is pending; a message gets the next number when it becomes visible. The lower 32 bits are the
--           first four of the twelve bytes, the upper 11 bits the first ones of the eight bytes behind them
--   time    the other 53 bits of the eight bytes
--   pending    list    entries that can be delivered, in order; one whose message has expired is skipped (a tombstone)
--   invisible  zset    a letter and an entry, by the moment at which it ends: L leased, D delayed, R given back with a delay
--   data       hash    id -> message
--   meta       hash    `made` once the mailbox exists: its settings; `tombs`: the number of tombstones; `due`: nothing in
--                      invisible ends before it (not known: look); `rank`: the highest rank; `idle_at`: from then on the
--                      mailbox is gone; `op:CLIENT:SLOT`: the token of that slot's last operation, when it was done (in
--                      seconds, 10 bytes), and what it came to: asked again, it is not done again; `swept`: how far those
--                      are looked through that can be forgotten
--   delayed    hash    id -> member of invisible, for D and R
--   special    hash    id -> what only messages with an expiry or a group have
--   expiring   zset    ids by the moment at which they expire
--   behind     zset    members of groups behind the one at the head, in the order of group and arrival
--   heads      hash    group -> 1 while one of its messages is pending, leased or given back
--   dead       zset    ids of dead letters by the moment of death; graves, a hash, has them
--   dedup      hash    deduplication id -> until when, and the id of the first message; dedups orders them by that moment
local META, PENDING, INVISIBLE, DATA = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- SETTINGS are those of the caller's handles: `=` and a text if they are new, otherwise `?` and the text, for a mailbox that is
-- made by this script.
local TOKEN, SETTINGS, CLUSTER, OPERATION = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- In a cluster channels belong to slots, from Redis 7 on, which is known by this number.
local PUBLISH = CLUSTER == '1' and redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH'
-- For so many seconds operations are remembered.
local REMEMBERED_SECONDS = 600
-- A moment that does not come.
local NEVER = 9007199254740991
-- The rank before the first. Entries of an earlier version of this format have lower ones.
local FIRST_RANK = 4294967296
local call, sub, byte = redis.call, string.sub, string.byte
local now = clock()
local seconds = string.format('%d', math.floor(now / 2000000))
local meta = call('HMGET', META, 'made', 'due', OPERATION, 'rank', 'idle_at')
if meta[5] and tonumber(meta[5]) <= now then
  for i = 1, #KEYS do
    call('UNLINK', KEYS[i])
  end
  meta = {}
end
local stored_settings, next_deadline, last_operation, rank = meta[1], tonumber(meta[2] or nil), meta[3], tonumber(meta[4] or FIRST_RANK)
local is_new, is_deadline_read, is_rank_changed = not stored_settings, false, false
local replayed
if last_operation then
  local past, present = struct.unpack('>I8', last_operation), struct.unpack('>I8', TOKEN)
  if past == present then
    replayed = sub(last_operation, 19)
  elseif past > present then
    -- The tokens of a slot grow. An older one is of a request that comes late: its answer was given to another attempt.
    return redis.error_reply('LATE a later operation of this client was done')
  end
end
local is_deadline_added, ready_count = false, 0

-- What the settings of a text are.
local max_size, max_deliveries, deduplication_window, idle_expiry, has_expiring
local function parse_settings(text)
  max_size, max_deliveries, deduplication_window, idle_expiry, has_expiring = nil, nil, 300000, nil, false
  for name, value in string.gmatch(text, '([%a_]+) (%d+)') do
    value = tonumber(value)
    if name == 'max_size' then max_size = value
    elseif name == 'max_deliveries' then max_deliveries = value
    elseif name == 'window' then deduplication_window = value
    elseif name == 'idle' then idle_expiry = value
    elseif name == 'expiring' then has_expiring = true end
  end
end
parse_settings(stored_settings or sub(SETTINGS, 2))

-- The mailbox is there, and has this setting, if one is given.
local function ensure_mailbox(name, value)
  local text = stored_settings or sub(SETTINGS, 2)
  local setting = name and name .. ' ' .. value .. ' ' or ''
  if not string.find(text, setting, 1, true) then
    text = string.gsub(text, name .. ' %d+ ', '') .. setting
  end
  if text == stored_settings then
    return
  end
  stored_settings = text
  if VERB ~= 'send' then
    -- A write that needs no memory. After it a script may go on when there is none: consumers make room.
    call('HDEL', META, '')
  end
  call('HSET', META, 'made', stored_settings)
  if is_new then
    redis.pcall('PERSIST', META)
  end
end

if byte(SETTINGS) == 61 and not replayed then
  for name, value in string.gmatch(SETTINGS, '([%a_]+) (%d+)') do
    ensure_mailbox(name, value)
  end
  parse_settings(stored_settings)
end

-- An entry with the next rank, which is now visible.
local function with_next_rank(entry)
  rank, is_rank_changed = rank + 1, true
  local upper = math.floor(rank / 4294967296) % 2048
  return string.char(byte(entry, 1) % 4) .. sub(entry, 2, 20) .. struct.pack('>I4', rank % 4294967296)
    .. string.char(math.floor(upper / 8), upper % 8 * 32 + byte(entry, 26) % 32) .. sub(entry, 27)
end

-- The end of every verb: the operation is remembered, those who wait are told, what is idle later lives on.
local function finish_operation(result)
  local fields = result and { OPERATION, TOKEN .. seconds .. result } or {}
  if is_deadline_read and stored_settings then
    fields[#fields + 1], fields[#fields + 2] = 'due', string.format('%d', next_deadline)
  end
  if is_rank_changed then
    fields[#fields + 1], fields[#fields + 2] = 'rank', string.format('%d', rank)
  end
  if #fields > 0 then
    redis.pcall('HSET', META, unpack(fields))
  end
  if result then
    if not last_operation or sub(last_operation, 9, 16) ~= sub(seconds, 1, 8) then
      -- Clients that are gone are forgotten: a part of them now, the next one at the next time.
      local page = redis.pcall('HSCAN', META, call('HGET', META, 'swept') or '0', 'MATCH', 'op:*', 'COUNT', '100')
      local gone = {}
      for i = 1, page.err and 0 or #page[2], 2 do
        if sub(page[2][i + 1], 9, 18) + REMEMBERED_SECONDS < tonumber(seconds) then
          gone[#gone + 1] = page[2][i]
        end
      end
      if #gone > 0 then
        call('HDEL', META, unpack(gone))
      end
      redis.pcall('HSET', META, 'swept', page[1] or '0')
      local forgotten = call('ZRANGEBYSCORE', KEYS[13], '-inf', now, 'LIMIT', 0, 1000)
      if #forgotten > 0 then
        call('ZREM', KEYS[13], unpack(forgotten))
        call('HDEL', KEYS[12], unpack(forgotten))
      end
    end
    if not stored_settings then
      call('PEXPIRE', META, REMEMBERED_SECONDS * 1000)
    end
  end
  if ready_count > 0 or is_deadline_added then
    redis.pcall(PUBLISH, sub(META, 1, -5) .. 'wake', is_deadline_added and '0' or string.format('%d', ready_count))
  end
  if idle_expiry and stored_settings then
    -- A delayed or leased message keeps the mailbox in use.
    local last_due = call('ZRANGE', INVISIBLE, -1, -1, 'WITHSCORES')[2]
    local idle_at = math.max(now, tonumber(last_due or 0)) + idle_expiry * 2000
    redis.pcall('HSET', META, 'idle_at', string.format('%d', idle_at))
    local till = string.format('%d', math.ceil(idle_at / 2000))
    for i = 1, #KEYS do
      call('PEXPIREAT', KEYS[i], till)
    end
  end
end

-- Whether something has to be done before a verb. Looks when the next lease or delay ends, should that have come.
local function has_due_messages()
  if not next_deadline or next_deadline <= now then
    next_deadline = tonumber(call('ZRANGE', INVISIBLE, '0', '0', 'WITHSCORES')[2] or NEVER)
    is_deadline_read = true
  end
  return has_expiring or next_deadline <= now
end

-- Which of these entries are of messages that can be delivered: their bodies, and false for tombstones. A message that expired
-- leaves its entry behind, and its id may be used again; so the record of one that expires names its entry.
local function read_bodies(entries)
  local ids = {}
  for i = 1, #entries do
    ids[i] = sub(entries[i], 5, 20)
  end
  local found = call('HMGET', DATA, unpack(ids))
  for i = 1, #entries do
    if found[i] and byte(entries[i], 1) % 2 == 1 then
      local packed = call('HGET', KEYS[6], ids[i])
      found[i] = packed and cmsgpack.unpack(packed).e == entries[i] and found[i]
    end
  end
  return found
end

-- Members of `invisible` with their moments, of which none is before the first.
local function add_invisible(soonest, ...)
  if next_deadline and soonest < next_deadline then
    -- Before they are there, so that it is never too late.
    next_deadline = soonest
    call('HSET', META, 'due', string.format('%d', next_deadline))
  end
  call('ZADD', INVISIBLE, ...)
end
