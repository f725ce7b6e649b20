-- Acquire records for a member of a share group: those that are available again, then new ones.
--
-- ARGV   11 number of the call, which is the same if it is repeated
--        12 lock (ms), 13 limit of deliveries, 14 limit of records in flight
--        15 and 16 the largest number of records and bytes; the last record may exceed the bytes
--        17 the least bytes of new records
--        18 ID at which the new records end: the high watermark or the last stable offset; "" for the log's end
--        19 "1" to leave out records of aborted transactions
--        20 ... for each delivery count below the limit, from 1 on, how many records may be acquired together with one
--           that has it
--
-- Answers {'ok', next ID, leader epochs, ms until the next lock ends or -1, entries, the delivery counts of the first
-- ones, the others having 1}; {'closed'}: the group has not begun; {'more'}: repeat the call; or {'rescan'}, {'nostate'}, {'othertopic'}.

if not is_open() then return {'closed'} end

local lock, limit, locks = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
local room, bytes, least_bytes = tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17])
local bound, is_committed = ARGV[18], ARGV[19] == '1'
local acquired_field = field_of('acquired', member)
local SEEN_AT_MOST = 5000
local entries, counts, finished, seen = {}, {}, {}, 0
-- The number of the call and the acquired ranges, for a repeated call. A range has no pending entries of other calls.
local ranges = {ARGV[11]}
local byte, DOLLAR = string.byte, 36

local function answer(wait) return {'ok', id_of(s.ms, s.seq), s.epochs, wait, entries, counts} end

-- The answer to the call was lost: return what it has acquired, as far as the member still has it, and restart the lock.
local acquired = call('HGET', shares, acquired_field)
if acquired and match(acquired, '^%S+') == ARGV[11] then
  for first, last in string.gmatch(acquired, '(%d+%-%d+):(%d+%-%d+)') do
    local count_of, ids = {}, {}
    for _, each in ipairs(call('XPENDING', stream, group, first, last, 10000, member)) do count_of[each[1]] = each[4] end
    for _, entry in ipairs(call('XRANGE', stream, first, last, 'COUNT', 10000)) do
      if count_of[entry[1]] and #entries < room then
        entries[#entries + 1], counts[#counts + 1], ids[#ids + 1] = entry, count_of[entry[1]], entry[1]
      end
    end
    with_ids({'XCLAIM', stream, group, member, 0}, ids, {'IDLE', 0, 'JUSTID'})
  end
  return answer(0)
end

-- Aborted transactions whose markers are after the first transactional record. The entries come in ascending order.
local aborted, aborted_from, has_all_aborted = {}, nil, false
local function is_aborted(id, producer)
  aborted_from = aborted_from or id
  while not has_all_aborted and (#aborted == 0 or not is_id_before(id, aborted[#aborted].stable)) do
    local more = call('XRANGE', aborted_key, aborted_from, '+', 'COUNT', 100)
    for _, each in ipairs(more) do
      local f = each[2]
      if f[1] == 'producer' and pair_of(f[4] or '') and pair_of(f[6] or '') then
        aborted[#aborted + 1] = {marker = each[1], producer = f[2], first = f[4], stable = f[6]}
      end
      aborted_from = '(' .. each[1]
    end
    has_all_aborted = #more < 100
  end
  for _, each in ipairs(aborted) do
    if each.producer == producer and not is_id_before(id, each.first) and is_id_before(id, each.marker) then return true end
  end
  return false
end

local function size_of(fields)
  local size = 0
  for i = 1, #fields do size = size + #fields[i] end
  return size
end

-- Return true if the IDs of all entries up to this one have offsets, which is usual: it saves parsing each of them.
local function all_have_offsets(last) return s.skipped == 0 and pair_of(last) <= highest_ms end

local function has_offset(id)
  local ms, seq = pair_of(id)
  return ms <= highest_ms and seq <= mask
end

-- Add an entry to those of the answer. Consumers do not see markers, and entries whose IDs have no offset.
local function take(entry, is_visible)
  local id, fields = entry[1], entry[2]
  local size, producer, is_transactional = 0, nil, false
  for i = 1, #fields, 2 do
    local name = fields[i]
    size = size + #name + #fields[i + 1]
    if byte(name) == DOLLAR then
      if name == '$control' then is_visible = false end
      if name == '$producer' then producer = match(fields[i + 1], '^(%d+):') end
      if name == '$transactional' then is_transactional = fields[i + 1] == '1' end
    end
  end
  if is_committed and is_transactional and producer and is_aborted(id, producer) then is_visible = false end
  seen = seen + 1
  if not is_visible then
    finished[#finished + 1] = id
    return false
  end
  entries[#entries + 1] = entry
  room, bytes = room - 1, bytes - size
  return true
end

-- An entry may be as large as the largest one ever.
local function at_once() return math.max(1, math.min(100, math.floor(bytes / math.max(s.largest, 1)))) end

-- Records that were removed from the log are finished.
local start = log_start(s)
if start ~= '0-0' then
  local gone
  repeat
    gone = call('XPENDING', stream, group, '-', '(' .. start, AT_ONCE)
    for _, each in ipairs(gone) do finished[#finished + 1] = each[1] end
    finish(finished)
    finished = {}
  until #gone < AT_ONCE
end

local first_id, last_id, next_ms, next_seq -- the last range of consecutive IDs, and the ID after it
local function note_range(id)
  local ms, seq = pair_of(id)
  if ms ~= next_ms or seq ~= next_seq then
    if first_id then ranges[#ranges + 1] = first_id .. ':' .. last_id end
    first_id = id
  end
  last_id, next_ms, next_seq = id, after(ms, seq)
end

local together = room -- how many records may be acquired with those that are acquired already
local from = '-'
while room > 0 and bytes > 0 do
  local wanted = math.min(room, at_once())
  local found = call('XPENDING', stream, group, 'IDLE', lock, from, '+', wanted)
  local ids, count_of, is_full = {}, {}, false
  for _, each in ipairs(found) do
    local is_over = each[4] >= limit
    if is_over and each[2] ~= RELEASED then
      finished[#finished + 1] = each[1]
    else
      -- A record that was released under a higher limit comes alone.
      local allowed = is_over and 1 or tonumber(ARGV[19 + math.max(each[4], 1)])
      is_full = #entries + #ids >= math.min(together, allowed)
      if is_full then break end -- it begins the next request
      together = math.min(together, allowed)
      ids[#ids + 1], count_of[each[1]] = each[1], each[4] + 1
    end
    from = '(' .. each[1]
  end
  if #ids > 0 then
    for _, entry in ipairs(call('XCLAIM', stream, group, member, 0, unpack(ids))) do
      if entry then
        local id = entry[1]
        if take(entry, has_offset(id)) then
          counts[#counts + 1] = count_of[id]
          note_range(id)
        end
        count_of[id] = nil
      end
    end
    for id in pairs(count_of) do finished[#finished + 1] = id end -- deleted entries, which 6.2 keeps pending
  end
  room = is_full and 0 or math.min(room, together - #entries)
  if #found < wanted then break end
end
finish(finished)
finished = {}
if first_id then ranges[#ranges + 1] = first_id .. ':' .. last_id end

-- Return how many of the next new entries are below the bound, up to the limits.
local function count_new(most)
  local last, limit_id, count, size, found = last_delivered(), bound == '' and '+' or '(' .. bound, 0, 0, nil
  repeat
    found = call('XRANGE', stream, '(' .. last, limit_id, 'COUNT', math.min(100, most - count))
    for _, entry in ipairs(found) do
      count, size, last = count + 1, size + size_of(entry[2]), entry[1]
    end
  until #found < 100 or count >= most or size >= bytes
  if size < least_bytes and #entries == 0 then return 0 end
  return count
end

local space = math.min(room, locks - call('XPENDING', stream, group)[1])
local has_bound = bound ~= '' and is_id_before(bound, id_of(s.ms, s.seq))
local left, first_new, last_new = math.huge, nil, nil
if space > 0 and bytes > 0 and (has_bound or least_bytes > 1 and #entries == 0) then left = count_new(space) end
while space > 0 and bytes > 0 and left > 0 and seen < SEEN_AT_MOST do
  local wanted, before_them = math.min(space, left, at_once()), #entries
  local reply = call('XREADGROUP', 'GROUP', group, member, 'COUNT', wanted, 'STREAMS', stream, '>')
  local found = reply and reply[1][2] or {}
  if #found > 0 then
    first_new, last_new = first_new or found[1][1], found[#found][1]
    local is_usual = all_have_offsets(last_new)
    for _, entry in ipairs(found) do take(entry, is_usual or has_offset(entry[1])) end
  end
  finish(finished)
  finished = {}
  space, left = space - (#entries - before_them), left - #found
  if #found < wanted then break end
end

if #entries == 0 then
  if seen >= SEEN_AT_MOST then return {'more'} end
  local wait = -1
  each_pending(function(found)
    for _, each in ipairs(found) do
      local rest = lock - each[3]
      if rest > 0 and (wait < 0 or rest < wait) then wait = rest end
    end
  end)
  return answer(wait)
end

if first_new then ranges[#ranges + 1] = first_new .. ':' .. last_new end
call('HSET', shares, acquired_field, table.concat(ranges, ' '))
return answer(lock)
