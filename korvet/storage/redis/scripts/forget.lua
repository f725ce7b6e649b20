-- Delete a group's committed offsets.
--
-- ARGV    3 … their fields; without any, the whole hash is deleted
--
-- Answers {'ok'}; {'stale'}: sent over a connection that was replaced, and nothing is deleted.

if is_stale() then return {'stale'} end
if #ARGV == 2 then
  redis.call('UNLINK', group)
  return {'ok'}
end
for i = 3, #ARGV do redis.call('HDEL', group, ARGV[i]) end -- comes first, since a full Redis refuses HSET
note_writer()
return {'ok'}
