-- Replace the old stream by the new one, with the entries added meanwhile and the state of its consumer groups.
--
-- KEYS    as for compact_begin
-- ARGV    9 the run's token, 10 the first ID that is not copied yet (as XRANGE takes it), 11 and 12 the largest
--           number of entries and bytes to copy; 13 ends and times of compactions, for the state
--
-- Answers {'ok', bytes retained, pending entries that were compacted away}, also if the run has finished before;
-- {'more'}: more than that has to be copied first; {'pending', number}: too many entries are pending to be
-- transferred in one call; {'large', ID}, {'superseded'} as compact_copy; or {'rescan'},
-- {'nostate'}, {'othertopic'}.

local MOST_FIELDS = 7000
local READ_AT_ONCE = 100
local MOST_PENDING = 5000 -- some 20 ms
local MOST_BYTES = 16777216
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

local has_counts = (redis.REDIS_VERSION_NUM or 0) >= 0x070000 -- there XCLAIM also skips entries that do not exist
local is_short = new.length <= MOST_PENDING and new.bytes - new.trimmed <= MOST_BYTES
local gone, effort, groups = 0, 0, {}

for i, group in ipairs(call('XINFO', 'GROUPS', old_stream)) do
  groups[i] = {}
  for at = 1, #group, 2 do groups[i][group[at]] = group[at + 1] end
  effort = effort + (is_short and math.min(groups[i].pending, new.length) or groups[i].pending)
end
if effort > MOST_PENDING then return {'pending', format('%d', effort)} end

local function count_entries_up_to(id)
  local ms, seq = pair_of(id)
  if not is_before(ms, seq, before(s.ms, s.seq)) then return new.entries end
  local piece = call('XREVRANGE', index, id, '-', 'COUNT', 1)[1]
  local from = piece and '(' .. piece[1] or '-'
  return (piece and tonumber(piece[2][8]) or new.entries - new.length) + #call('XRANGE', stream, from, id)
end

-- Most groups have one of a few last-delivered IDs.
local counts = {}
local function entries_up_to(id)
  counts[id] = counts[id] or format('%.0f', count_entries_up_to(id))
  return counts[id]
end

-- Entries that were delivered together are claimed together. Return a function to call with each pending entry, and
-- without one at the end; it returns the number of claimed entries.
local function claimer(group)
  local claimed, ids, consumer, idle, deliveries = 0, {}, nil, nil, nil
  return function(pending)
    local id, its_consumer, its_idle, its_deliveries = unpack(pending or {})
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

for _, group in ipairs(groups) do
  local name, id = group.name, group['last-delivered-id']
  if has_counts then
    call('XGROUP', 'CREATE', stream, name, id, 'ENTRIESREAD', entries_up_to(id))
  else
    call('XGROUP', 'CREATE', stream, name, id)
  end
  if group.consumers > 0 then -- groups that mirror Kafka groups have none
    for _, consumer in ipairs(call('XINFO', 'CONSUMERS', old_stream, name)) do
      call('XGROUP', 'CREATECONSUMER', stream, name, consumer[2])
    end
  end
  if group.pending > 0 then
    local goes_by_stream = is_short and new.length < group.pending
    gone = gone + group.pending - (goes_by_stream and claim_what_is_there(name, id) or claim_all(name))
  end
end

-- The new stream is complete. Redis refuses nothing from here on.

call('UNLINK', KEYS[10])
call('RENAME', old_stream, KEYS[10])
call('RENAME', stream, old_stream)
call('UNLINK', KEYS[10], old_index, old_summary, KEYS[7])
if call('EXISTS', index) == 1 then call('RENAME', index, old_index) end
if call('EXISTS', summary) == 1 then call('RENAME', summary, old_summary) end

state_key = old_state
for _, name in ipairs({'length', 'entries', 'bytes', 'trimmed', 'largest', 'chunk_bytes', 'chunk_opened', 'chunk_appended',
  'chunk_max', 'stretch_bytes', 'stretch_max'}) do
  s[name] = new[name]
end
stream = old_stream
note_first(s)
save(s, 'cleaned', ARGV[13], 'cleaned.bytes', clean_bytes, 'compacted', token)
call('HDEL', state_key, 'compaction')
return {'ok', format('%.0f', s.bytes - s.trimmed), format('%d', gone)}
