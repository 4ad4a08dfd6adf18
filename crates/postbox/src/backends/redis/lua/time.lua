-- The server's time, in half microseconds since 1970: fine enough to order what one script does, and exact in a double.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 2000000 + time[2] * 2
end
