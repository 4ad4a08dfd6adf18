-- The beginning of every verb of the reply store. An entry is a hash:
--   state (pending, resolved, cancelled, gone), value, type, created, expires, resolved in milliseconds, and the token of
--   whoever brought it to its state, so that a call that is repeated is not refused.
-- Entries go by themselves a minute after they have expired; `expiries` orders them by that moment.
local ENTRY, EXPIRIES = KEYS[1], KEYS[2]
local TOKEN, ID, PUBLISH, CHANNEL = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local GRACE = 60000

local function state_of(entry, expires)
  if not entry or entry == 'gone' then
    return nil
  end
  return tonumber(expires) <= now and 'expired' or entry
end

local function tell()
  redis.pcall(PUBLISH, CHANNEL, ID)
end
