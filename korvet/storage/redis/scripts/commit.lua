-- Store a group's committed offsets, fenced by its generation.
--
-- KEYS    the group's hash
-- ARGV    1 generation, or -1 for a commit outside of any generation; then for each committed offset
--           field, offset and leader epoch, topic id and metadata
--
-- Answers {'ok'}; {'fenced', generation}: the group has that later generation, and nothing is stored.

local group = KEYS[1]
local given, stored = tonumber(ARGV[1]), redis.call('HGET', group, 'generation')
if given >= 0 and stored and tonumber(stored) > given then return {'fenced', stored} end
if given >= 0 then redis.call('HSET', group, 'generation', ARGV[1]) end

local clock = redis.call('TIME')
local now = string.format(' %.0f ', clock[1] * 1000 + math.floor(clock[2] / 1000))
for i = 2, #ARGV, 3 do
  redis.call('HSET', group, ARGV[i], ARGV[i + 1] .. now .. ARGV[i + 2])
end
return {'ok'}
