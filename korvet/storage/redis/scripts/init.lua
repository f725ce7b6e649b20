-- Make a partition's state. A stream that is there without one is adopted: `settle` then finds its entries.
--
-- ARGV    9 the topic's number in the order of creations
--        10 producers with ids given out before this time (ms) may have been forgotten with an earlier topic
--        11 when the topic was created (ms), where offsets follow the clock and that is known; else 0
--
-- Answers {'ok'}, also when the state was there; {'deleted'}: a topic created later has the partition by now.

local present = call('HMGET', state_key, 'topic', 'created')
if present[1] == topic_id then return {'ok'} end
if present[1] then
  if tonumber(present[2]) >= tonumber(ARGV[9]) then return {'deleted'} end
  call('UNLINK', unpack(KEYS)) -- of a topic whose deletion was not finished
end

-- A rehearsal: whatever a broker's user is not allowed to do shall fail here, and not after half of an append.
call('XADD', index, '1-1', 'rehearsal', '1')
call('XTRIM', index, 'MAXLEN', '=', 0)
call('UNLINK', index, summary, producers_key)
call('HDEL', state_key, 'rehearsal')
call('HDEL', producers_key, 'rehearsal')
call('XTRIM', stream, 'MINID', '=', '0-0')

-- Offset 0, or the topic's creation. A stream that had entries before begins with the first of them. One that once held more
-- than it does keeps its last ID; IDs below cannot be used again.
local lowest = id_of(mask == 0 and 1 or 0, 0)
local ms, seq = pair_of(lowest)
if mask > 0 then ms = math.min(tonumber(ARGV[11]), now) end
local created = id_of(ms, seq)
local earliest = created
local entries, producers_from = 0, producer_id_at(tonumber(ARGV[10]))
if call('EXISTS', stream) == 1 then
  local info, length = call('XINFO', 'STREAM', stream), call('XLEN', stream)
  producers_from = producer_id_at(now) -- perhaps the state was deleted by hand
  for i = 1, #info, 2 do
    if info[i] == 'entries-added' then entries = info[i + 1] - length end
    if info[i] == 'last-generated-id' and length == 0 and info[i + 1] ~= '0-0' then
      ms, seq = after(pair_of(info[i + 1]))
      earliest = id_of(ms, seq)
    end
  end
  if length > 0 then
    ms, seq = pair_of(lowest)
    earliest = first_record_id(first_entry()) or lowest
    -- The first entry was added after the topic was created.
    if created ~= lowest and is_id_before(created, earliest) then earliest = created end
  end
end

local s = {
  ms = ms, seq = seq, start = lowest, length = 0, entries = entries, bytes = 0, trimmed = 0,
  largest = 0, skipped = 0, epochs = '0:' .. lowest, checked = 0, chunk_bytes = 0,
  chunk_opened = 0, chunk_appended = 0, chunk_max = NO_TIMESTAMP, stretch_bytes = 0, stretch_max = NO_TIMESTAMP, earliest = earliest, first = '', has_moved = true,
}
save(s, 'topic', topic_id, 'created', ARGV[9], 'producers.from', producers_from)
return {'ok'}
