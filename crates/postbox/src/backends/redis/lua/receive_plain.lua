-- Leases messages for several receives at once. Continues with `receive.lua` if messages are due,
-- or if a leased message expires or has a group.
--
-- ARGV from 6, for each receive: the maximum number of messages, the visibility timeout in
-- milliseconds.
-- Returns a flat list, with numbers as text, because the server is slow with nested lists and
-- numbers:
--   the time
--   when to retry if a receive got nothing, or -1
--   the number of messages of each receive, a semicolon, and the members of `invisible`
--   each message
local members, bodies, counts = {}, {}, {}
local has_records = false

-- Returns the messages that an earlier attempt leased, except those whose lease has ended since.
local function replay_leases(result)
  local split = string.find(result, ';', 1, true)
  local leased, at = {}, 0
  for from = split + 1, #result, 33 do
    leased[#leased + 1] = sub(result, from, from + 32)
  end
  local deadlines = #leased > 0 and call('ZMSCORE', INVISIBLE, unpack(leased))
  for count in string.gmatch(sub(result, 1, split - 1), '%d+') do
    local replayed_count = 0
    for _ = 1, tonumber(count) do
      at = at + 1
      local body = deadlines[at] and tonumber(deadlines[at]) > now and call('HGET', DATA, sub(leased[at], 6, 21))
      if body then
        members[#members + 1], bodies[#bodies + 1] = leased[at], body
        replayed_count = replayed_count + 1
      end
    end
    counts[#counts + 1] = string.format('%d', replayed_count)
  end
end

local function lease_ready()
  local wanted, tombstones = 0, 0
  for i = 6, #ARGV, 2 do
    wanted = wanted + ARGV[i]
    counts[#counts + 1] = '0'
  end
  repeat
    local tombstones_before = tombstones
    local entries = call('LPOP', PENDING, string.format('%d', wanted - #members))
    if not entries then break end
    local found = read_bodies(entries)
    for i = 1, #entries do
      if found[i] then
        local entry = entries[i]
        local flags, c1, c2, c3 = byte(entry, 1, 4)
        if flags + c1 + c2 + c3 == 0 then
          members[#members + 1] = 'L\0\0\0\1' .. sub(entry, 5)
        else
          has_records = has_records or flags % 4 > 0
          local count = math.min(c1 * 65536 + c2 * 256 + c3 + 1, 16777215)
          members[#members + 1] = 'L' .. sub(entry, 1, 1) .. struct.pack('>I3', count) .. sub(entry, 5)
        end
        bodies[#bodies + 1] = found[i]
      else
        tombstones = tombstones + 1
      end
    end
  until tombstones == tombstones_before
  if tombstones > 0 then call('HINCRBY', META, 'tombs', -tombstones) end
  if #members == 0 then return end
  local leases, at, soonest = {}, 0, NEVER
  for r = 1, #counts do
    local max, deadline = ARGV[2 * r + 4], now + ARGV[2 * r + 5] * 2000
    local upto = at + max
    soonest = math.min(soonest, deadline)
    counts[r] = upto <= #members and max or string.format('%d', #members - at)
    while at < upto and at < #members do
      at = at + 1
      leases[2 * at - 1], leases[2 * at] = string.format('%d', deadline + at), members[at]
    end
  end
  add_invisible(soonest, unpack(leases))
end

-- Returns the time at which an empty receive has to retry, or -1.
local function retry_time()
  if counts[#counts] ~= '0' then return -1 end
  local deadline = call('ZRANGE', INVISIBLE, 0, 0, 'WITHSCORES')[2]
  local expiry = settings.expiring and call('ZRANGE', EXPIRING, 0, 0, 'WITHSCORES')[2]
  local retry = math.min(tonumber(deadline or NEVER), tonumber(expiry or NEVER))
  if settings.idle then
    -- A waiting receiver keeps the mailbox in use.
    retry = math.min(retry, now + settings.idle * 1000)
  end
  return retry < NEVER and retry or -1
end

if replayed then
  replay_leases(replayed)
  return { now, -1, table.concat(counts, ',') .. ';' .. table.concat(members), unpack(bodies) }
end

local function finish_receive()
  local leased = table.concat(counts, ',') .. ';' .. table.concat(members)
  -- An empty result is remembered too, so that a late second attempt leases nothing.
  finish_operation(leased)
  return { now, retry_time(), leased, unpack(bodies) }
end

local is_plain = not has_due_messages()
if is_plain then
  lease_ready()
  if not has_records then return finish_receive() end
end
