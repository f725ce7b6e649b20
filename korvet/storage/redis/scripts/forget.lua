-- Delete a group's committed offsets.
--
-- ARGV    3 … their fields; without any, the whole hash is deleted
--
-- Answers {'ok'}; {'stale'}: sent over a connection that was replaced; nothing is deleted.

if is_stale() then return {'stale'} end
if #ARGV == 2 then
  redis.call('UNLINK', group)
  return {'ok'}
end
for i = 3, #ARGV do redis.call('HDEL', group, ARGV[i]) end -- before any HSET, which a full Redis refuses
note_writer()
return {'ok'}
