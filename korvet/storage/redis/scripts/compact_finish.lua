-- Replace the old stream by the new one, with the entries added meanwhile and the state of its consumer groups.
--
-- KEYS    as for compact_begin
-- ARGV    9 the run's token, 10 the first ID that is not copied yet (as XRANGE takes it), 11 and 12 the largest
--           number of entries and bytes to copy, 13 of groups to set; 14 ends and times of compactions, for the state;
--           15 "1" to compare all groups; 16 the ID where the compacted part ends; then the name and the last-delivered
--           ID of each group that the new stream does not have because it has read entries that are not copied yet
--
-- Answers {'ok', bytes retained, pending entries that were compacted away}, also if the run has finished before;
-- {'more'}: more has to be copied, or groups to be set, first; {'pending', number}: too many entries are pending to be
-- transferred in one call; {'large', ID}, {'superseded'} as compact_copy; or {'rescan'},
-- {'nostate'}, {'othertopic'}.

local MOST_FIELDS = 7000
local READ_AT_ONCE = 100
local MOST_PENDING = 5000 -- some 20 ms
local MOST_BYTES = 16777216
local MOST_COUNTED = 5000 -- entries that are read to set entries-read
local FIRST_GROUP = 17
local token = ARGV[9]

local s, refusal = load('compacted')
if not s then return refusal end
if s.other == token then return {'ok', format('%.0f', s.bytes - s.trimmed), '0'} end
if not settle(s, 1000) then
  save(s)
  return {'rescan'}
end
if s.dirty then save(s) end
if call('HGET', state_key, 'compaction') ~= token then return {'superseded'} end

-- Copy the remaining entries.

local old_stream, old_state, old_index, old_summary = stream, state_key, index, summary
stream, state_key, index, summary = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local new = load('clean.bytes')
if not new then return {'superseded'} end
local clean_bytes = new.other

local tail, tail_bytes, from = {}, 0, ARGV[10]
repeat
  local entries = call('XRANGE', old_stream, from, '+', 'COUNT', READ_AT_ONCE)
  for _, entry in ipairs(entries) do
    if #entry[2] > MOST_FIELDS then return {'large', entry[1]} end
    tail[#tail + 1] = entry
    tail_bytes = tail_bytes + measure(entry, 0)
    from = '(' .. entry[1]
    if #tail > tonumber(ARGV[11]) or tail_bytes > tonumber(ARGV[12]) then return {'more'} end
  end
until #entries < READ_AT_ONCE

-- Collect the groups to set: those at the tail, and those that follow.lua has moved since the last step. Comparing all
-- groups takes 0.2 s if there are 50,000. XINFO GROUPS returns for each 2 its name, 4 consumers, 6 pending entries,
-- 8 last-delivered ID.

local function groups_of(key) return call('EXISTS', key) == 1 and call('XINFO', 'GROUPS', key) or {} end

local function number_of_groups(key)
  local info = call('EXISTS', key) == 1 and call('XINFO', 'STREAM', key) or {}
  for i = 1, #info, 2 do
    if info[i] == 'groups' then return info[i + 1] end
  end
  return 0
end

local moved, last_ids, in_use, copied = call('HGETALL', KEYS[11]), {}, {}, {}
for at = FIRST_GROUP, #ARGV, 2 do last_ids[ARGV[at]] = ARGV[at + 1] end
for at = 1, #moved, 2 do last_ids[moved[at]] = moved[at + 1] end

if ARGV[15] == '1' then
  for _, group in ipairs(groups_of(stream)) do copied[group[2]] = group[8] end
  last_ids = {}
  for _, group in ipairs(call('XINFO', 'GROUPS', old_stream)) do
    local name, consumers, id = group[2], group[4], group[8]
    if consumers > 0 then in_use[#in_use + 1] = group end
    if copied[name] ~= id then last_ids[name] = id end
    copied[name] = nil
  end
else
  local missing = 0
  for name in pairs(last_ids) do
    if pcall('XPENDING', stream, name).err then missing = missing + 1 end
  end
  local is_complete = number_of_groups(stream) + missing == number_of_groups(old_stream)
  if not is_complete or (#moved + #ARGV - FIRST_GROUP) / 2 > tonumber(ARGV[13]) then return {'more'} end
end

call('HSET', state_key, 'finishing', 1) -- a full Redis refuses a script's first write, and none after it
now = math.max(s.chunk_appended, 1)
for _, entry in ipairs(tail) do
  call('XADD', stream, entry[1], unpack(entry[2]))
  local ms, seq = pair_of(entry[1])
  local bytes, timestamp = measure(entry, ms)
  if seq > mask then timestamp = NO_TIMESTAMP end
  if cover(new, 1, bytes, timestamp) then close_chunk(new, entry[1]) end
  new.length, new.largest = new.length + 1, math.max(new.largest, bytes)
end

-- Keep the last ID of the old stream, even if its last entries were deleted.

local last_id = '0-0'
local info = call('XINFO', 'STREAM', old_stream)
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then last_id = info[i + 1] end
end
if call('EXISTS', stream) == 0 then
  call('XADD', stream, last_id, 'nothing', 'left')
  call('XTRIM', stream, 'MAXLEN', '=', 0)
  new.entries = new.entries + 1
else
  call('XSETID', stream, last_id)
end

-- Drop the entries that were trimmed meanwhile.

local start_ms, start_seq = pair_of(s.start)
local chunk = s.start ~= '0-0' and call('XREVRANGE', index, '(' .. s.start, '-', 'COUNT', 1)[1]
if chunk then new.trimmed = tonumber(chunk[2][6]) or new.trimmed end
drop_before(new, s.start)
if new.length == 0 then new.trimmed, new.chunk_opened, new.chunk_max = new.bytes, 0, NO_TIMESTAMP end

-- Groups. A pending entry that was compacted away is not pending any more, since it cannot be delivered again. For each
-- group the script iterates over its pending entries or over the entries of the new stream, whichever costs less.

local is_short = new.length <= MOST_PENDING and new.bytes - new.trimmed <= MOST_BYTES
local gone, effort = 0, 0
for _, group in ipairs(in_use) do
  effort = effort + (is_short and math.min(group[6], new.length) or group[6])
end
if effort > MOST_PENDING then return {'pending', format('%d', effort)} end

-- Entries that were delivered together are claimed together. Return a function to call with each pending entry, and
-- without one at the end; it returns the number of claimed entries.
local function claimer(group)
  local claimed, ids, consumer, idle, deliveries = 0, {}, nil, nil, nil
  return function(pending)
    local id, its_consumer, its_idle, its_deliveries = unpack(pending or {})
    -- Clients may have set the count to the largest integer, which is no exact number in Lua.
    its_deliveries = its_deliveries and math.min(its_deliveries, 2^53)
    if #ids == 1000 or #ids > 0 and (its_consumer ~= consumer or its_idle ~= idle or its_deliveries ~= deliveries) then
      ids[#ids + 1], ids[#ids + 2], ids[#ids + 3] = 'IDLE', idle, 'RETRYCOUNT'
      ids[#ids + 1], ids[#ids + 2], ids[#ids + 3] = deliveries, 'FORCE', 'JUSTID'
      claimed = claimed + #call('XCLAIM', stream, group, consumer, 0, unpack(ids))
      ids = {}
    end
    if id and (has_counts or #call('XRANGE', stream, id, id) > 0) then
      ids[#ids + 1], consumer, idle, deliveries = id, its_consumer, its_idle, its_deliveries
    end
    return claimed
  end
end

local function claim_all(group)
  local claim, from, pending = claimer(group), '-', nil
  repeat
    pending = call('XPENDING', old_stream, group, from, '+', 1000)
    for _, each in ipairs(pending) do
      claim(each)
      from = '(' .. each[1]
    end
  until #pending < 1000
  return claim()
end

local function claim_what_is_there(group, last_delivered)
  local claim, from, entries = claimer(group), '-', nil
  repeat
    entries = call('XRANGE', stream, from, last_delivered, 'COUNT', 100)
    for _, entry in ipairs(entries) do
      local pending = call('XPENDING', old_stream, group, entry[1], entry[1], 1)[1]
      if pending then claim(pending) end
      from = '(' .. entry[1]
    end
  until #entries < 100
  return claim()
end

new.ms, new.seq = s.ms, s.seq
for name in pairs(copied) do call('XGROUP', 'DESTROY', stream, name) end
for name, id in pairs(last_ids) do put_group(name, id, entries_up_to(new, id, MOST_COUNTED)) end
for _, group in ipairs(in_use) do
  local name, pending, id = group[2], group[6], group[8]
  for _, consumer in ipairs(call('XINFO', 'CONSUMERS', old_stream, name)) do
    call('XGROUP', 'CREATECONSUMER', stream, name, consumer[2])
  end
  if pending > 0 then
    local goes_by_stream = is_short and new.length < pending
    gone = gone + pending - (goes_by_stream and claim_what_is_there(name, id) or claim_all(name))
  end
end

-- The new stream is complete. Redis refuses nothing from here on.

call('UNLINK', KEYS[10])
call('RENAME', old_stream, KEYS[10])
call('RENAME', stream, old_stream)
call('UNLINK', KEYS[10], KEYS[11], old_index, old_summary, KEYS[7])
if call('EXISTS', index) == 1 then call('RENAME', index, old_index) end
if call('EXISTS', summary) == 1 then call('RENAME', summary, old_summary) end

-- No record of these transactions is left.
pcall('XTRIM', aborted_key, 'MINID', '=', ARGV[16])

state_key = old_state
for _, name in ipairs({'length', 'entries', 'bytes', 'trimmed', 'largest', 'chunk_bytes', 'chunk_opened', 'chunk_appended',
  'chunk_max', 'stretch_bytes', 'stretch_max'}) do
  s[name] = new[name]
end
stream = old_stream
note_first(s)
save(s, 'cleaned', ARGV[14], 'cleaned.bytes', clean_bytes, 'compacted', token)
call('HDEL', state_key, 'compaction')
return {'ok', format('%.0f', s.bytes - s.trimmed), format('%d', gone)}
