-- Compare and set one topic of the catalogue; idempotent. A deletion stores its time (ms), since the partitions'
-- producers are forgotten with the topic.
--
-- KEYS    the hash        ARGV    field, the expected value ("": absent), the new value ("": delete)
--
-- Answers 1, or 0 if the stored value differs from both.

local present = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if present == ARGV[3] then return 1 end
if present ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  local clock = redis.call('TIME')
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[1], '$forgotten', clock[1] * 1000 + math.floor(clock[2] / 1000))
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
