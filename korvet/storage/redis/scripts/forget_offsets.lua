-- Delete a group's committed offsets of some partitions, and those that transactions have staged for them.
--
-- KEYS    the group's hash
-- ARGV    topic and partition of each

local group = KEYS[1]
for i = 1, #ARGV do redis.call('HDEL', group, 'offset:' .. ARGV[i]) end
for producer in string.gmatch(redis.call('HGET', group, 'open') or '', '%d+') do
  local staged = cjson.decode(redis.call('HGET', group, 'staged:' .. producer))
  for i = 1, #ARGV do staged.offsets[ARGV[i]] = nil end
  redis.call('HSET', group, 'staged:' .. producer, cjson.encode(staged))
end
