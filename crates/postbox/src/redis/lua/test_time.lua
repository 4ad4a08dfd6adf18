-- The time of tests, in half microseconds: that of a key, which tests move, and a little later at each look.
local function clock()
  return redis.call('INCR', 'postbox:test:time')
end
