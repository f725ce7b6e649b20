-- Remove a group's positions in a topic that was deleted, not those in a later one of that name.
--
-- KEYS    the group's hash
-- ARGV    1 topic id, 2 … fields

for i = 2, #ARGV do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  if stored and string.match(stored, '^%S+ %S+ %S+ (%S+)') == ARGV[1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
