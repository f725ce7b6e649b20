-- Let a share group begin, unless it has begun. A Redis group of plain clients is adopted as it stands.
--
-- ARGV   11 the ID before the offset at which a new group begins; 0-0 for the beginning
--
-- Answers {'ok'}; or {'rescan'}, {'nostate'}, {'othertopic'}.

if is_open() then return {'ok'} end
if not has_group() then
  local count = entries_up_to(s, ARGV[11], 5000)
  local reply = pcall('XGROUP', 'CREATE', stream, group, ARGV[11], 'MKSTREAM',
    unpack(count and {'ENTRIESREAD', format('%.0f', count)} or {}))
  if is_error(reply) then return reply end
end
-- A compaction compares the groups that have consumers with the old stream, and does not know about this one yet.
call('XGROUP', 'CREATECONSUMER', stream, group, RELEASED)
call('HDEL', state_key, 'compaction')
call('HSET', shares, group_field, 1)
return {'ok'}
