-- Raise the newest leader epoch, unless it is higher already.
--
-- KEYS    the hash of leader epochs        ARGV    a partition's leader epoch
--
-- Answers the newest one.

local newest = math.max(tonumber(redis.call('HGET', KEYS[1], 'newest') or '0'), tonumber(ARGV[1]))
redis.call('HSET', KEYS[1], 'newest', string.format('%d', newest))
return newest
