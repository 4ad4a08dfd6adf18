-- The first part of every script of the reply store, after `time.lua`.
--
-- KEYS: 1 the entry of a reply, 2 the ids of the shard's entries by the time at which they expire.
-- ARGV: 1 the request's token, 2 the id, 3 `1` in a cluster, 4 the channel of the shard. The
-- arguments of the verb start at 5.
--
-- An entry is a hash: state (pending, resolved, cancelled, gone), value, type, created, expires,
-- resolved (times in milliseconds), and the token of the request that set the state, so that a
-- repeated request succeeds. The server deletes an entry a minute after it has expired.
local ENTRY, EXPIRIES = KEYS[1], KEYS[2]
local TOKEN, ID, CLUSTER, CHANNEL = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- In a cluster, sharded channels exist from Redis 7 on. Only these versions define the number.
local PUBLISH = CLUSTER == '1' and redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH'
local GRACE_MILLIS = 60000
local call = redis.call
local now = math.floor(clock() / 2000)

-- Returns the state at this time, or nothing if the entry does not exist or is consumed.
local function current_state(state, expires)
  if not state or state == 'gone' then return nil end
  return tonumber(expires) <= now and 'expired' or state
end

-- A server without memory lets a script continue after a first write that needs none.
local function allow_without_memory() call('HDEL', ENTRY, '') end

local function publish() redis.pcall(PUBLISH, CHANNEL, ID) end
