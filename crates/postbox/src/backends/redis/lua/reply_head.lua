-- The beginning of every verb of the reply store. An entry is a hash:
--   state (pending, resolved, cancelled, gone), value, type, created, expires, resolved in milliseconds, and the token of
--   whoever brought it to its state, so that a call that is repeated is not refused.
-- Entries go by themselves a minute after they have expired; `expiries` orders them by that moment.
local ENTRY, EXPIRIES = KEYS[1], KEYS[2]
local TOKEN, ID, CLUSTER, CHANNEL = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- In a cluster channels belong to slots, from Redis 7 on, which is known by this number.
local PUBLISH = CLUSTER == '1' and redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH'
local call = redis.call
local now = math.floor(clock() / 2000)
local GRACE = 60000

local function current_state(entry, expires)
  if not entry or entry == 'gone' then
    return nil
  end
  return tonumber(expires) <= now and 'expired' or entry
end

-- A write that needs no memory: after it a script may go on when the server has none left, and this one makes room.
local function allow_without_memory()
  call('HDEL', ENTRY, '')
end

local function publish()
  redis.pcall(PUBLISH, CHANNEL, ID)
end
