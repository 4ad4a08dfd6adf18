-- Returns the server's time in half microseconds since 1970. This unit orders the steps of one
-- script, and a double holds it exactly.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 2000000 + time[2] * 2
end
