-- Store a group's committed offsets, fenced by its generation and its coordinator's epoch.
--
-- KEYS    the group's hash
-- ARGV    1 generation, or -1 for a commit outside of any generation; 2 epoch of the coordinator, or -1; then for
--           each committed offset: field, offset and leader epoch, topic id and metadata
--
-- An offset that a transaction has staged before is superseded (KAFKA-5247): `stage_offsets.lua` has its format.
--
-- Answers {'ok'}. Otherwise nothing is stored: {'fenced', generation}, the group has that later generation;
-- {'replaced', epoch}, it has had a later coordinator.

local group = KEYS[1]
local given, epoch = tonumber(ARGV[1]), tonumber(ARGV[2])
local stored, latest, open = unpack(redis.call('HMGET', group, 'generation', 'coordinator', 'open'))
if epoch >= 0 and latest and tonumber(latest) > epoch then return {'replaced', latest} end
if given >= 0 and stored and tonumber(stored) > given then return {'fenced', stored} end
if given >= 0 then redis.call('HSET', group, 'generation', ARGV[1]) end

local clock = redis.call('TIME')
local now = string.format(' %.0f ', clock[1] * 1000 + math.floor(clock[2] / 1000))
for i = 3, #ARGV, 3 do
  redis.call('HSET', group, ARGV[i], ARGV[i + 1] .. now .. ARGV[i + 2])
end
change_staged(group, open, function(offsets)
  local is_changed = false
  for i = 3, #ARGV, 3 do
    local name = string.sub(ARGV[i], #'offset:' + 1)
    if offsets[name] then
      offsets[name], is_changed = '', true
    end
  end
  return is_changed
end)
return {'ok'}
