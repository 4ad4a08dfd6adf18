-- Notes that a client waits: the next messages are handed to it, with the request that sends them. ARGV: 5 the client, 6 how many
-- at most, 7 for how many milliseconds. Without 6 and 7 it does not wait any longer.
-- Answers what a receive does. Instead of how many it gets: W if it waits from now on; nothing if it cannot, since there may be
-- something to receive, too many wait, or what is pushed does not reach it. What was handed to it before is in the answer to the same token, and in the one that
-- it leaves with.
local WAITS, MOST = 'W', 64
local FIRST = 6

--@take

local function answer(memory)
  if string.find(memory, ';', 1, true) then
    take_again(memory)
    memory = table.concat(counts, ',') .. ';' .. table.concat(members)
  end
  return { now, -1, memory, unpack(bodies) }
end

if replay then
  return answer(replay)
end
-- A write that needs no memory: who leaves can do so when there is none.
call('HDEL', META, '')
local others, many, rest = '', 0, waits or ''
while rest ~= '' do
  local size = byte(rest) + 21
  if sub(rest, 2, size - 20) ~= ARGV[5] then
    others, many = others .. sub(rest, 1, size), many + 1
  end
  rest = sub(rest, size + 1)
end

-- Whether what is pushed to a client is heard; and this user may push.
local function reaches(client)
  local heard = redis.pcall(PUBLISH, sub(META, 1, -5) .. client .. ':wake', '')
  return type(heard) == 'number' and heard > 0
end

local memory = ''
if not ARGV[6] then
  memory = last and sub(last, 19) or ''
  memory = memory ~= WAITS and memory or ''
elseif not is_due() and many < MOST and call('LLEN', PENDING) == 0 and reaches(ARGV[5]) then
  memory = WAITS
  others = others .. string.char(#ARGV[5]) .. ARGV[5] .. TOKEN .. struct.pack('>I4I8', ARGV[6], ARGV[7])
end
if others ~= (waits or '') then
  let_wait(others)
end
finish(memory)
return answer(memory)
