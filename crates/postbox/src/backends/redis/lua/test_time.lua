-- Replaces `time.lua` in tests. The time is a key that tests set. Each script sees a time half a
-- millisecond later.
local function clock() return redis.call('INCRBY', 'postbox:test:time', 1000) end
