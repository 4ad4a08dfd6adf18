-- The first part of every mailbox script, after `time.lua`: the stored format, and the code that
-- all verbs share.
--
-- KEYS: the keys of the mailbox, in the order of the list below.
-- ARGV: 1 the request's token, 2 settings, 3 `1` in a cluster, 4 the field of `meta` that remembers
-- the request, 5 `1` if the verb must fail when the server has no memory left. The arguments of the
-- verb start at 6.
--
-- Times are half microseconds since 1970.
-- An entry is 32 bytes that identify one delivery of one message:
--   flags (1 byte)       1: it expires, 2: it has a group; the upper six bits: its releases
--   deliveries (3 bytes)
--   id (16 bytes)
--   rank (43 bits)       orders `pending`; a message gets the next one when it becomes visible. The
--                        lower 32 bits follow the id, the upper 11 bits begin the last 8 bytes
--   sent at (53 bits)    the rest of the last 8 bytes
--
--   meta       hash  `made`: the settings, set while the mailbox exists; `tombs`: number of
--                    tombstones; `due`: no member of `invisible` ends earlier (missing: unknown);
--                    `rank`: the highest rank; `idle_at`: when an unused mailbox is deleted;
--                    `op:CLIENT:SLOT`: token (8 bytes), seconds (10 bytes) and result of the last
--                    request of a slot; `swept`: cursor of the scan that removes old requests
--   pending    list  entries of messages that can be delivered, in order. A message that expires
--                    leaves its entry behind as a tombstone, which is skipped
--   invisible  zset  a state letter and an entry, by the time at which the state ends: L leased,
--                    D delayed, R returned with a delay
--   data       hash  id -> message
--   delayed    hash  id -> member of `invisible`, for D and R
--   special    hash  id -> record (MessagePack) of a message that expires or has a group: x when it
--                    expires, g group, e entry, m member of `behind`, s state: P pending, B behind,
--                    X expired, or the state letter of `invisible`
--   expiring   zset  ids by the time at which the messages expire
--   behind     zset  group, order and entry of messages that wait for the head of their group
--   heads      hash  group -> 1 while a message of the group is pending, leased or returned
--   dead       zset  ids of dead letters by the time at which they were dead-lettered
--   graves     hash  id -> dead letter (MessagePack): e entry, r reason, t time, b message, g group
--   dedup      hash  deduplication id -> end of its window (8 bytes) and id of the first message
--   dedups     zset  deduplication ids by the end of their windows
local META, PENDING, INVISIBLE, DATA = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local DELAYED, RECORDS, EXPIRING, GROUP_WAITING, GROUP_HEADS = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local DEAD_LETTER_IDS, DEAD_LETTERS, DEDUPLICATION, DEDUPLICATION_ENDS = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
-- SETTINGS are `=` and settings to store, or `?` and settings to use if this script creates the
-- mailbox.
local TOKEN, SETTINGS, CLUSTER, OPERATION, NEEDS_MEMORY = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- In a cluster, sharded channels exist from Redis 7 on. Only these versions define the number.
local PUBLISH = CLUSTER == '1' and redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH'
local REMEMBERED_SECONDS = 600
-- Later than every time.
local NEVER = 9007199254740991
-- Entries of an earlier version of this format have lower ranks.
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
local stored_settings, next_deadline = meta[1], tonumber(meta[2] or nil)
local last_operation, rank = meta[3], tonumber(meta[4] or FIRST_RANK)
local is_new, is_deadline_read, is_rank_changed = not stored_settings, false, false
-- The result of this request, if an earlier attempt of it was executed.
local replayed
if last_operation then
  local last_token, token = struct.unpack('>I8', last_operation), struct.unpack('>I8', TOKEN)
  if last_token == token then
    replayed = sub(last_operation, 19)
  elseif last_token > token then
    -- The tokens of a slot grow. The client has already received the result of an older one by
    -- another attempt.
    return redis.error_reply('LATE a later operation of this client was done')
  end
end
local is_deadline_added, ready_count = false, 0

-- max_size, max_deliveries, window (of deduplication), idle; expiring: the mailbox has held
-- messages that expire.
local settings
local function parse_settings(text)
  settings = { window = 300000 }
  for name, value in string.gmatch(text, '([%a_]+) (%d+)') do
    settings[name] = tonumber(value)
  end
end
parse_settings(stored_settings or sub(SETTINGS, 2))

-- Creates the mailbox unless it exists, and stores a setting if one is given.
local function ensure_mailbox(name, value)
  local text = stored_settings or sub(SETTINGS, 2)
  local setting = name and name .. ' ' .. value .. ' ' or ''
  if not string.find(text, setting, 1, true) then
    text = string.gsub(text, name .. ' %d+ ', '') .. setting
  end
  if text == stored_settings then return end
  stored_settings = text
  if NEEDS_MEMORY ~= '1' then
    -- A server without memory lets a script continue after a first write that needs none.
    call('HDEL', META, '')
  end
  call('HSET', META, 'made', stored_settings)
  if is_new then redis.pcall('PERSIST', META) end
end

if byte(SETTINGS) == 61 and not replayed then
  for name, value in string.gmatch(SETTINGS, '([%a_]+) (%d+)') do
    ensure_mailbox(name, value)
  end
  parse_settings(stored_settings)
end

-- Returns the entry with the next rank, and without its count of releases.
local function with_next_rank(entry)
  rank, is_rank_changed = rank + 1, true
  local upper = math.floor(rank / 4294967296) % 2048
  return string.char(byte(entry, 1) % 4) .. sub(entry, 2, 20) .. struct.pack('>I4', rank % 4294967296)
    .. string.char(math.floor(upper / 8), upper % 8 * 32 + byte(entry, 26) % 32) .. sub(entry, 27)
end

-- Every verb ends with this function, which stores the changed fields of `meta` and wakes
-- receivers. A verb that writes passes its result, which is stored for repeated requests.
local function finish_operation(result)
  local fields = result and { OPERATION, TOKEN .. seconds .. result } or {}
  if is_deadline_read and stored_settings then
    fields[#fields + 1], fields[#fields + 2] = 'due', string.format('%d', next_deadline)
  end
  if is_rank_changed then
    fields[#fields + 1], fields[#fields + 2] = 'rank', string.format('%d', rank)
  end
  if #fields > 0 then redis.pcall('HSET', META, unpack(fields)) end
  if result then
    if not last_operation or sub(last_operation, 9, 16) ~= sub(seconds, 1, 8) then
      -- About every 100 s, a client removes one page of old requests, and deduplication ids whose
      -- window has ended.
      local page = redis.pcall('HSCAN', META, call('HGET', META, 'swept') or '0', 'MATCH', 'op:*', 'COUNT', '100')
      local old_operations = {}
      for i = 1, page.err and 0 or #page[2], 2 do
        if sub(page[2][i + 1], 9, 18) + REMEMBERED_SECONDS < tonumber(seconds) then
          old_operations[#old_operations + 1] = page[2][i]
        end
      end
      if #old_operations > 0 then call('HDEL', META, unpack(old_operations)) end
      redis.pcall('HSET', META, 'swept', page[1] or '0')
      local ended = call('ZRANGEBYSCORE', DEDUPLICATION_ENDS, '-inf', now, 'LIMIT', 0, 1000)
      if #ended > 0 then
        call('ZREM', DEDUPLICATION_ENDS, unpack(ended))
        call('HDEL', DEDUPLICATION, unpack(ended))
      end
    end
    if not stored_settings then call('PEXPIRE', META, REMEMBERED_SECONDS * 1000) end
  end
  if ready_count > 0 or is_deadline_added then
    -- 0 wakes all receivers, because their next deadline may have changed.
    redis.pcall(PUBLISH, sub(META, 1, -5) .. 'wake', is_deadline_added and '0' or string.format('%d', ready_count))
  end
  if settings.idle and stored_settings then
    -- A delayed or leased message keeps the mailbox in use.
    local last_deadline = call('ZRANGE', INVISIBLE, -1, -1, 'WITHSCORES')[2]
    local idle_at = math.max(now, tonumber(last_deadline or 0)) + settings.idle * 2000
    redis.pcall('HSET', META, 'idle_at', string.format('%d', idle_at))
    local idle_at_millis = string.format('%d', math.ceil(idle_at / 2000))
    for i = 1, #KEYS do
      call('PEXPIREAT', KEYS[i], idle_at_millis)
    end
  end
end

-- Returns whether a verb must promote messages first. Reads the next deadline from `invisible` if
-- the known one has passed.
local function has_due_messages()
  if not next_deadline or next_deadline <= now then
    next_deadline = tonumber(call('ZRANGE', INVISIBLE, '0', '0', 'WITHSCORES')[2] or NEVER)
    is_deadline_read = true
  end
  return settings.expiring or next_deadline <= now
end

-- Returns the bodies of entries, and false for tombstones. The id of an expired message may have
-- been used again. So an entry that expires is valid only if the record of its id names this entry.
local function read_bodies(entries)
  local ids = {}
  for i = 1, #entries do
    ids[i] = sub(entries[i], 5, 20)
  end
  local bodies = call('HMGET', DATA, unpack(ids))
  for i = 1, #entries do
    if bodies[i] and byte(entries[i], 1) % 2 == 1 then
      local packed = call('HGET', RECORDS, ids[i])
      bodies[i] = packed and cmsgpack.unpack(packed).e == entries[i] and bodies[i]
    end
  end
  return bodies
end

-- Adds scores and members to `invisible`. No score is below `soonest`.
local function add_invisible(soonest, ...)
  if next_deadline and soonest < next_deadline then
    -- Written before the members, so that `due` is never too late.
    next_deadline = soonest
    call('HSET', META, 'due', string.format('%d', next_deadline))
  end
  call('ZADD', INVISIBLE, ...)
end
