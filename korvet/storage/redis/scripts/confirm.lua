-- Raise the high watermark of a partition with `min.insync.replicas` above 1, at most to the end of its log.
--
-- KEYS    $state        ARGV    1 topic id, 2 the ID before which replicas have all records,
--                             3 the first ID of the oldest transaction that was open when that was the end, or ""
--
-- Answers 1, or 0 if the high watermark is not below that ID, or the state is of another topic.

local function pair_of(id)
  local ms, seq = string.match(id or '', '^(%d+)%-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function is_before(id, other)
  local ms, seq = pair_of(id)
  local other_ms, other_seq = pair_of(other)
  return ms and other_ms and (ms < other_ms or ms == other_ms and seq < other_seq)
end

local topic, next_id, visible = unpack(redis.call('HMGET', KEYS[1], 'topic', 'next', 'visible'))
if topic ~= ARGV[1] then return 0 end
local id = is_before(next_id, ARGV[2]) and next_id or ARGV[2]
if not is_before(visible, id) then return 0 end
redis.call('HSET', KEYS[1], 'visible', id, 'visible.stable', ARGV[3])
return 1
