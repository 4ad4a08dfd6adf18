-- The state transitions of a message, for the verbs that handle messages of all kinds.

-- The reason of a dead letter whose deliveries are spent. Equals `postbox_core::DELIVERIES_SPENT`.
local DELIVERIES_SPENT = 'delivered as often as the mailbox allows, and never acknowledged'
local ready_entries, times_used = {}, 0

-- Returns a time after all earlier ones of this script, so that scores keep the order of insertion.
local function unique_time()
  times_used = times_used + 1
  return now + times_used
end

local function id_of(entry) return sub(entry, 5, 20) end

local function read_record(entry)
  if byte(entry, 1) % 4 == 0 then return nil end
  local packed = call('HGET', RECORDS, id_of(entry))
  return packed and cmsgpack.unpack(packed)
end

local function write_record(entry, record, state)
  if record then
    record.s, record.e = state, entry
    call('HSET', RECORDS, id_of(entry), cmsgpack.pack(record))
  end
end

local function mark_leased(members)
  for _, member in ipairs(members) do
    local entry = sub(member, 2)
    write_record(entry, read_record(entry), 'L')
  end
end

-- Appends the ready entries to `pending`, in their order.
local function push_ready()
  for from = 1, #ready_entries, 1000 do
    call('RPUSH', PENDING, unpack(ready_entries, from, math.min(from + 999, #ready_entries)))
  end
  ready_count = ready_count + #ready_entries
  ready_entries = {}
end

local function group_prefix(group) return struct.pack('>I4', #group) .. group end

local function has_spent_deliveries(entry)
  return settings.max_deliveries and struct.unpack('>I3', entry, 2) >= settings.max_deliveries
end

-- Marks a message as expired. `delete_expired` deletes it, in the order of expiry.
local function mark_expired(entry, record)
  call('ZADD', EXPIRING, record.x, id_of(entry))
  write_record(entry, record, 'X')
end

-- Deletes what is stored under the id of a message.
local function delete_stored(entry, record)
  local id = id_of(entry)
  call('HDEL', DATA, id)
  if record then
    call('HDEL', RECORDS, id)
    if record.x then call('ZREM', EXPIRING, id) end
  end
end

local function store_dead_letter(entry, record, reason)
  local id = id_of(entry)
  local letter = { e = entry, r = reason, t = now, b = call('HGET', DATA, id), g = record and record.g or nil }
  call('ZADD', DEAD_LETTER_IDS, unique_time(), id)
  call('HSET', DEAD_LETTERS, id, cmsgpack.pack(letter))
  delete_stored(entry, record)
end

-- Adds a message to the ready entries. `push_ready` writes them.
local function make_ready(entry, record)
  entry = with_next_rank(entry)
  ready_entries[#ready_entries + 1] = entry
  write_record(entry, record, 'P')
end

-- Makes the next message of a group ready after its head is gone.
local function advance_group(group)
  local prefix = group_prefix(group)
  local last = prefix .. string.rep('\255', 9)
  while true do
    local member = call('ZRANGEBYLEX', GROUP_WAITING, '[' .. prefix, '[' .. last, 'LIMIT', 0, 1)[1]
    if not member then
      call('HDEL', GROUP_HEADS, group)
      return
    end
    call('ZREM', GROUP_WAITING, member)
    local entry = sub(member, #prefix + 9)
    local record = read_record(entry)
    if not has_spent_deliveries(entry) then return make_ready(entry, record) end
    store_dead_letter(entry, record, DELIVERIES_SPENT)
  end
end

-- Advances the group of a message that is gone, if the message was its head.
local function leave_group(record)
  if record and record.g and record.s ~= 'B' and record.s ~= 'D' then
    advance_group(record.g)
  end
end

local function delete_message(entry, record)
  delete_stored(entry, record)
  leave_group(record)
end

local function dead_letter(entry, record, reason)
  store_dead_letter(entry, record, reason)
  leave_group(record)
end

-- Makes a message ready, unless its deliveries are spent or it has expired.
local function make_visible(entry, record)
  if has_spent_deliveries(entry) then
    dead_letter(entry, record, DELIVERIES_SPENT)
  elseif record and record.x and record.x <= now then
    mark_expired(entry, record)
  else
    make_ready(entry, record)
  end
end

-- Adds a message that becomes visible after milliseconds: D delayed, R returned.
local function add_delayed(state, entry, record, milliseconds)
  local visible_at, member = unique_time() + milliseconds * 2000, state .. entry
  add_invisible(visible_at, visible_at, member)
  call('HSET', DELAYED, id_of(entry), member)
  write_record(entry, record, state)
  is_deadline_added = true
end

-- Returns messages that no handler has seen to their old positions in `pending`. Their deliveries
-- do not count.
local function release_entries(entries)
  local function rank_of(entry)
    local upper, next = byte(entry, 25, 26)
    return (upper * 8 + math.floor(next / 32)) * 4294967296 + struct.unpack('>I4', entry, 21)
  end
  local released = {}
  for i, entry in ipairs(entries) do
    local record = read_record(entry)
    local flags, count = byte(entry, 1), struct.unpack('>I3', entry, 2)
    -- The 64th release counts as a delivery, so that no receipt repeats.
    local releases = math.floor(flags / 4) + 1
    if releases == 64 then
      releases = 0
    else
      count = math.max(count - 1, 0)
    end
    entry = string.char(flags % 4 + releases * 4) .. struct.pack('>I3', count) .. sub(entry, 5)
    write_record(entry, record, 'P')
    released[i] = { rank_of(entry), entry }
  end
  -- In descending order of rank, most entries go to the head of the list, which is fast.
  table.sort(released, function(one, other) return one[1] > other[1] end)
  for _, one in ipairs(released) do
    local own_rank, entry = one[1], one[2]
    local at, successor = 0, nil
    repeat
      local page = call('LRANGE', PENDING, at, at == 0 and 0 or at + 99)
      for _, other in ipairs(page) do
        if rank_of(other) > own_rank then
          successor = other
          break
        end
      end
      at = at + #page
    until successor or #page == 0
    if successor and at == 1 then
      call('LPUSH', PENDING, entry)
    elseif successor then
      call('LINSERT', PENDING, 'BEFORE', successor, entry)
    else
      call('RPUSH', PENDING, entry)
    end
  end
  ready_count = ready_count + #entries
end

-- Makes a message visible for the first time, or adds it behind the head of its group.
local function enqueue(entry, record)
  if record and record.g then
    if call('HSETNX', GROUP_HEADS, record.g, 1) == 0 then
      record.m = group_prefix(record.g) .. struct.pack('>I8', unique_time()) .. entry
      call('ZADD', GROUP_WAITING, 0, record.m)
      return write_record(entry, record, 'B')
    end
    record.s = 'P'
  end
  make_visible(entry, record)
end

-- Deletes expired messages, in the order of expiry.
local function delete_expired()
  while settings.expiring do
    local expired = call('ZRANGEBYSCORE', EXPIRING, '-inf', now, 'LIMIT', 0, 500)
    if #expired == 0 then break end
    call('ZREM', EXPIRING, unpack(expired))
    for _, id in ipairs(expired) do
      local packed = call('HGET', RECORDS, id)
      local record = packed and cmsgpack.unpack(packed)
      -- A leased message stays. Its expiry is checked when it comes back.
      if record and record.s ~= 'L' then
        if record.s == 'P' then
          call('HINCRBY', META, 'tombs', 1)
        elseif record.s == 'B' then
          call('ZREM', GROUP_WAITING, record.m)
        elseif record.s ~= 'X' then
          call('ZREM', INVISIBLE, record.s .. record.e)
          call('HDEL', DELAYED, id)
        end
        delete_message(record.e, record)
      end
    end
    push_ready()
  end
end

-- Ends leases and delays that are due, in the order of their deadlines. Then deletes expired
-- messages.
local function promote_due()
  if not has_due_messages() then return end
  local ended
  repeat
    ended = call('ZRANGEBYSCORE', INVISIBLE, '-inf', now, 'LIMIT', 0, 500)
    if #ended > 0 then
      local undelayed = {}
      call('ZREM', INVISIBLE, unpack(ended))
      for _, member in ipairs(ended) do
        local state, entry = sub(member, 1, 1), sub(member, 2)
        if state ~= 'L' then undelayed[#undelayed + 1] = id_of(entry) end
        local record = read_record(entry)
        if state == 'D' then enqueue(entry, record) else make_visible(entry, record) end
      end
      if #undelayed > 0 then call('HDEL', DELAYED, unpack(undelayed)) end
      push_ready()
    end
  until #ended < 500
  -- Reads the next deadline.
  has_due_messages()
  delete_expired()
end

-- Returns the number of messages, without dead letters.
local function message_count()
  local tombstones = tonumber(call('HGET', META, 'tombs')) or 0
  return call('LLEN', PENDING) - tombstones + call('ZCARD', INVISIBLE) + call('ZCARD', GROUP_WAITING)
end
