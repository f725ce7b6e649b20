-- Create a partition's state. An existing stream without a state is adopted: `settle` then finds its entries.
--
-- ARGV    9 the topic's number in the order of creations
--        10 producers with ids assigned before this time (ms) may have been forgotten with an earlier topic
--        11 creation time of the topic (ms), used under timestamp offsets; 0 if unknown
--
-- Answers {'ok'}, also if the state exists already; {'deleted'}: the partition belongs to a topic created later.

local present = call('HMGET', state_key, 'topic', 'created')
if present[1] == topic_id then return {'ok'} end
if present[1] then
  if tonumber(present[2]) >= tonumber(ARGV[9]) then return {'deleted'} end
  call('UNLINK', own_keys .. 'shares', unpack(KEYS)) -- the keys of a topic whose deletion was not completed
end

-- Try the commands of an append: if the Redis user lacks a permission, fail here and not in the middle of an append.
call('XADD', index, '*', 'rehearsal', '1')
call('XTRIM', index, 'MAXLEN', '=', 0)
call('UNLINK', index, summary, producers_key, transactions_key, open_key, aborted_key)
call('HDEL', state_key, 'rehearsal')
call('HDEL', producers_key, 'rehearsal')
call('XTRIM', stream, 'MINID', '=', '0-0')

-- The log begins at offset 0, or at the topic's creation time. A stream that has entries already begins with the first
-- of them. An empty stream that once had entries keeps its last ID; lower IDs cannot be used again.
local lowest = id_of(mask == 0 and 1 or 0, 0)
local ms, seq = pair_of(lowest)
if mask > 0 then ms = math.min(tonumber(ARGV[11]), now) end
local created = id_of(ms, seq)
local earliest = created
local rebuild_end
local entries, producers_from = 0, producer_id_at(tonumber(ARGV[10]))
if call('EXISTS', stream) == 1 then
  local info, length = call('XINFO', 'STREAM', stream), call('XLEN', stream)
  producers_from = producer_id_at(now) -- another client may have deleted the state
  for i = 1, #info, 2 do
    if info[i] == 'entries-added' then entries = info[i + 1] - length end
    if info[i] == 'last-generated-id' and length == 0 and info[i + 1] ~= '0-0' then
      ms, seq = after(pair_of(info[i + 1]))
      earliest = id_of(ms, seq)
    end
  end
  if length > 0 then
    rebuild_end = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1][1]
    ms, seq = pair_of(lowest)
    earliest = first_record_id(first_entry()) or lowest
    -- The first entry was added after the topic was created.
    if created ~= lowest and is_id_before(created, earliest) then earliest = created end
  end
end

local run_id, newest_epoch = match(ARGV[8], '^(%S*) %S+ (%d+)')
local s = {
  ms = ms, seq = seq, start = lowest, length = 0, entries = entries, bytes = 0, trimmed = 0,
  largest = 0, skipped = 0, epochs = newest_epoch .. ':' .. lowest, checked = 0, chunk_bytes = 0,
  chunk_opened = 0, chunk_appended = 0, chunk_max = NO_TIMESTAMP, stretch_bytes = 0, stretch_max = NO_TIMESTAMP, earliest = earliest, first = '', has_moved = true,
}
save(s, 'topic', topic_id, 'created', ARGV[9], 'producers.from', producers_from)
if rebuild_end then call('HSET', state_key, 'rebuild.end', rebuild_end) end
if run_id ~= '' then call('HSET', state_key, 'server', run_id) end
return {'ok'}
