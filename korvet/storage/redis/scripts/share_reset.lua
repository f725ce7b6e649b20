-- Let a share group continue at another offset, and forget its records in flight.
--
-- ARGV   11 the ID before the offset; 0-0 for the beginning
--        12 lock (ms)
--
-- Answers {'ok'}; {'busy', consumer}: a plain Redis client has locked records; or {'rescan'}, {'nostate'},
-- {'othertopic'}.

local count = entries_up_to(s, ARGV[11], 5000)
local counts = count and {'ENTRIESREAD', format('%.0f', count)} or {}
if not has_group() then
  local reply = pcall('XGROUP', 'CREATE', stream, group, ARGV[11], 'MKSTREAM', unpack(counts))
  if is_error(reply) then return reply end
else
  local lock, ids, busy = tonumber(ARGV[12]), {}, nil
  each_pending(function(found)
    for _, each in ipairs(found) do
      ids[#ids + 1] = each[1]
      if each[3] < lock and not call('HGET', shares, field_of('acquired', each[2])) then busy = busy or each[2] end
    end
  end)
  if busy then return {'busy', busy} end
  call('XGROUP', 'SETID', stream, group, ARGV[11], unpack(counts))
  finish(ids)
end
call('XGROUP', 'CREATECONSUMER', stream, group, RELEASED)
call('HDEL', state_key, 'compaction')
call('HSET', shares, group_field, 1)
return {'ok'}
