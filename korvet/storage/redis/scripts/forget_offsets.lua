-- Delete a group's committed offsets of some partitions, and those that transactions have staged for them.
--
-- KEYS    the group's hash
-- ARGV    topic and partition of each

local group = KEYS[1]
for i = 1, #ARGV do redis.call('HDEL', group, 'offset:' .. ARGV[i]) end
change_staged(group, redis.call('HGET', group, 'open'), function(offsets)
  for i = 1, #ARGV do offsets[ARGV[i]] = nil end
  return true
end)
