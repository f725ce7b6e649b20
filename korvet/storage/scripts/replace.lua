-- Compare and set one field of a hash. Doing it twice is as doing it once.
--
-- KEYS    the hash        ARGV    field, the value expected ("": absent), the new one ("": delete)
--
-- Answers 1, or 0 when the value is another.

local present = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if present == ARGV[3] then return 1 end
if present ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
