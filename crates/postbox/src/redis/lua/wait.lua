-- Notes that a client waits: the next messages are handed to it, with the request that sends them. Or that it waits no longer.
-- ARGV: 5 the client; 6 W, 7 how many at most, 8 for how many milliseconds; or 6 L, 7 the token with which it waited; or 6 B and that
-- token, if nobody is there for what was handed to it meanwhile, which then is as if it had not been.
-- Answers what a receive does. Instead of how many it gets: W if it waits from now on; nothing if it cannot yet, since there may be
-- something to receive; N if it cannot here. What was handed to it before is in the answer to the same token, and in the one that
-- it leaves with.
local WAITS, NEVER_HERE, MOST = 'W', 'N', 64
local FIRST = 7

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

-- Those who wait without this client; only those who listen, if need be.
local function others(only_listeners)
  local kept, many, rest = '', 0, waits or ''
  while rest ~= '' do
    local size = byte(rest) + 21
    local client = sub(rest, 2, size - 20)
    if client ~= ARGV[5] and not (only_listeners and not listens(client)) then
      kept, many = kept .. sub(rest, 1, size), many + 1
    end
    rest = sub(rest, size + 1)
  end
  return kept, many
end

-- Puts back what was handed over and has not been received, before everything else.
local function put_back(memory)
  local entries = {}
  for from = string.find(memory, ';', 1, true) + 1, #memory, 33 do
    local member = sub(memory, from, from + 32)
    if call('ZREM', INVISIBLE, member) == 1 then
      table.insert(entries, 1, '\0\0\0\0' .. sub(member, 6))
    end
  end
  if #entries > 0 then
    call('LPUSH', PENDING, unpack(entries))
    woken = #entries
  end
end

local memory, kept, many = '', others()
if ARGV[6] ~= 'W' then
  local is_his = last and sub(last, 1, 8) == ARGV[7]
  memory = is_his and sub(last, 19) or ''
  memory = string.find(memory, ';', 1, true) and memory or ''
  if ARGV[6] == 'B' and memory ~= '' then
    put_back(memory)
    memory = ''
  end
else
  if many >= MOST then
    kept, many = others(true)
  end
  -- Where more is to be done for each message, or this user may not push, or too many wait, it never comes to it.
  if has_expiring or max_size or many >= MOST or not listens(ARGV[5])
    or type(redis.pcall(PUBLISH, channel_of(ARGV[5]), '')) ~= 'number' then
    memory = NEVER_HERE
  elseif not is_due() and call('LLEN', PENDING) == 0 then
    memory = WAITS
    kept = kept .. string.char(#ARGV[5]) .. ARGV[5] .. TOKEN .. struct.pack('>I4I8', ARGV[7], ARGV[8])
  end
end
if kept ~= (waits or '') then
  let_wait(kept)
end
finish(memory)
return answer(memory)
