-- Several verbs in one request: stores messages, acknowledges deliveries, leases messages, as if one came after the other;
-- all of them plain. ARGV: 5 nonce, 6 how many messages, 7 how many deliveries; id and message of each; the deliveries'
-- members; how many to lease at most, and for how many milliseconds, for each who asks.
-- Answers false if this is no plain case, or 0 if it is none at the moment: then none of it is done, whenever it is asked for
-- again. Otherwise what a receive answers, and before how many each gets whether the messages are stored (1, or 0 if the server
-- has no memory left; the other verbs go on and make room) and what came of each acknowledgement (1 or 0).
local SENT = 7 + 2 * ARGV[6]
local DONE = SENT + ARGV[7]
local FIRST = DONE + 1
local REFUSED = '-'

--@take

if replay == REFUSED then
  return 0
end
if replay then
  take_again(sub(replay, 2 + ARGV[7]))
  local done = sub(replay, 1, 1 + ARGV[7])
  return { now, -1, done .. table.concat(counts, ',') .. ';' .. table.concat(members), unpack(bodies) }
end
local is_refused = not made or max_size
if is_refused or is_due() then
  -- Remembered: should this request come a second time, late, others have done it by then. The write before it needs no memory.
  call('HDEL', META, '')
  finish(REFUSED)
  return not is_refused and 0
end

--@store
--@acknowledge

local stored, results = '1', ''
if SENT > 7 then
  -- First: a server without memory refuses it, unless something else was written before.
  -- Those who ask here come before those who wait elsewhere.
  local refusal = store(ARGV[5], 8, SENT, #ARGV > DONE)
  if refusal then
    if not string.find(refusal.err, 'OOM ', 1, true) then
      return refusal
    end
    stored = '0'
  end
end
if DONE > SENT then
  results = acknowledge(SENT + 1, DONE)
end
if #ARGV > DONE then
  take()
end
if has_special then
  --@messages
  keep_leased(members)
end
-- Those who ask here take what is sent here.
woken = math.max(0, woken - #members)
local done = stored .. results .. table.concat(counts, ',') .. ';' .. table.concat(members)
finish(done)
return { now, next_due(), done, unpack(bodies) }
