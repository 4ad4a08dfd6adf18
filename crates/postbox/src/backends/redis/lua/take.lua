-- Leasing, for several who ask at once: how many at most, and for how many milliseconds, of each, in ARGV from FIRST.
-- Spliced into the verbs that lease. Numbers for commands and answers are written as text here: the server takes long to
-- write one.
local members, bodies, counts = {}, {}, {}
local has_special = false

-- What an operation leased that is asked for again, unless the lease has ended since.
local function replay_leases(memory)
  local split = string.find(memory, ';', 1, true)
  local leased, at = {}, 0
  for from = split + 1, #memory, 33 do
    leased[#leased + 1] = sub(memory, from, from + 32)
  end
  local scores = #leased > 0 and call('ZMSCORE', INVISIBLE, unpack(leased))
  for count in string.gmatch(sub(memory, 1, split - 1), '%d+') do
    local many = 0
    for _ = 1, tonumber(count) do
      at = at + 1
      local body = scores[at] and tonumber(scores[at]) > now and call('HGET', DATA, sub(leased[at], 6, 21))
      if body then
        members[#members + 1], bodies[#bodies + 1] = leased[at], body
        many = many + 1
      end
    end
    counts[#counts + 1] = string.format('%d', many)
  end
end

local function lease_ready()
  local wanted, tombs = 0, 0
  for i = FIRST, #ARGV, 2 do
    wanted = wanted + ARGV[i]
    counts[#counts + 1] = '0'
  end
  repeat
    local before = tombs
    local entries = call('LPOP', PENDING, string.format('%d', wanted - #members))
    if not entries then
      break
    end
    local found = read_bodies(entries)
    for i = 1, #entries do
      if found[i] then
        local entry = entries[i]
        local flags, c1, c2, c3 = byte(entry, 1, 4)
        if flags + c1 + c2 + c3 == 0 then
          members[#members + 1] = 'L\0\0\0\1' .. sub(entry, 5)
        else
          has_special = has_special or flags % 4 > 0
          local count = math.min(c1 * 65536 + c2 * 256 + c3 + 1, 16777215)
          members[#members + 1] = 'L' .. sub(entry, 1, 1) .. struct.pack('>I3', count) .. sub(entry, 5)
        end
        bodies[#bodies + 1] = found[i]
      else
        tombs = tombs + 1
      end
    end
  until tombs == before
  if tombs > 0 then
    call('HINCRBY', META, 'tombs', -tombs)
  end
  if #members == 0 then
    return
  end
  local leases, at, soonest = {}, 0, NEVER
  for r = 1, #counts do
    local many, till = ARGV[FIRST + 2 * r - 2], now + ARGV[FIRST + 2 * r - 1] * 2000
    local upto = at + many
    soonest = math.min(soonest, till)
    counts[r] = upto <= #members and many or string.format('%d', #members - at)
    while at < upto and at < #members do
      at = at + 1
      leases[2 * at - 1], leases[2 * at] = string.format('%d', till + at), members[at]
    end
  end
  add_invisible(soonest, unpack(leases))
end

-- When to look again, if somebody got nothing.
local function next_look()
  if counts[#counts] ~= '0' then
    return -1
  end
  local soonest = call('ZRANGE', INVISIBLE, 0, 0, 'WITHSCORES')[2]
  local expiry = has_expiring and call('ZRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2]
  soonest = math.min(tonumber(soonest or NEVER), tonumber(expiry or NEVER))
  if idle_expiry then
    -- A receiver that waits uses the mailbox.
    soonest = math.min(soonest, now + idle_expiry * 1000)
  end
  return soonest < NEVER and soonest or -1
end
