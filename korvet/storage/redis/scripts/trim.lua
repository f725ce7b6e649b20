-- Drop expired chunks, or all entries below an ID (DeleteRecords). Works also if Redis is full.
--
-- ARGV    9 the new first ID of the log; "" for retention
--        10 for a tiered topic, the ID where retention stops in any case, and 11 and 12 the local retention.ms
--           and retention.bytes
--
-- Answers {'ok', log start, '1' if there is more to drop, entries dropped}; {'beyond', next ID} for an ID after the
-- end; {'rescan'}, {'nostate'}, {'othertopic'}.

local s, refusal = load()
if not s then return refusal end

-- The first write must be one that a full Redis does not refuse; it refuses HSET.
call('XTRIM', stream, 'MINID', '=', '0-0')

if not settle(s, 1000) then
  save(s)
  return {'rescan'}
end

local CHUNKS = 256 -- 16 MB, some milliseconds

local function truncate(ms, seq)
  if is_id_before(log_start(s), id_of(ms, seq)) then
    s.start, s.dirty = id_of(ms, seq), true
  else
    ms, seq = pair_of(s.start)
  end

  local start = id_of(ms, seq)
  if start == '0-0' then return false end
  local chunks = call('XRANGE', index, '-', '(' .. start, 'COUNT', CHUNKS)
  if #chunks > 0 then s.trimmed = tonumber(chunks[#chunks][2][6]) or s.trimmed end
  if #chunks == CHUNKS then
    drop_before(s, id_of(after(pair_of(chunks[CHUNKS][1]))))
    return true
  end
  drop_before(s, start)
  if not is_before(ms, seq, s.ms, s.seq) then
    s.trimmed, s.chunk_opened, s.chunk_max = s.bytes, 0, NO_TIMESTAMP
  end
  return false
end

local length = s.length
local has_more
if ARGV[9] == '' then
  s.checked = 0
  if ARGV[10] then retention_ms, retention_bytes = tonumber(ARGV[11]), tonumber(ARGV[12]) end
  has_more = expire(s, CHUNKS, ARGV[10])
else
  local ms, seq = pair_of(ARGV[9])
  if is_before(s.ms, s.seq, ms, seq) then
    if s.dirty then save(s) end
    return {'beyond', id_of(s.ms, s.seq)}
  end
  has_more = truncate(ms, seq)
end
if s.dirty then save(s) end
return {'ok', log_start(s), has_more and '1' or '0', length - s.length}
