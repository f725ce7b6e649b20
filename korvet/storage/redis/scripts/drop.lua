-- Delete all keys of a partition of a deleted topic, unless they belong to a topic created later.
--
-- KEYS    stream, $state, and all other keys of the partition
-- ARGV    1 topic id, 2 its number in the order of creations

local present = redis.call('HMGET', KEYS[2], 'topic', 'created')
if present[1] and present[1] ~= ARGV[1] and tonumber(present[2]) >= tonumber(ARGV[2]) then return 0 end
return redis.call('UNLINK', unpack(KEYS))
