-- Delete all keys of a partition of a topic that was deleted, unless a topic created later has it by now.
--
-- KEYS    stream, $state, and whatever else there is
-- ARGV    1 topic id, 2 its number in the order of creations

local present = redis.call('HMGET', KEYS[2], 'topic', 'created')
if present[1] and present[1] ~= ARGV[1] and tonumber(present[2]) >= tonumber(ARGV[2]) then return 0 end
return redis.call('UNLINK', unpack(KEYS))
