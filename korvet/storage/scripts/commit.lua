-- Store positions of a group, fenced by its generation.
--
-- KEYS    the group's hash
-- ARGV    1 generation, or -1 for a member of none; then for each position
--           field, offset and leader epoch, topic id and metadata
--
-- Answers {'ok'}; or {'fenced', generation}: the group has moved on to that one, nothing is stored.

local given, stored = tonumber(ARGV[1]), redis.call('HGET', KEYS[1], 'generation')
if given >= 0 then
  if stored and tonumber(stored) > given then return {'fenced', stored} end
  redis.call('HSET', KEYS[1], 'generation', ARGV[1])
end

local clock = redis.call('TIME')
local now = string.format(' %.0f ', clock[1] * 1000 + math.floor(clock[2] / 1000))
for i = 2, #ARGV, 3 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1] .. now .. ARGV[i + 2])
end
return {'ok'}
