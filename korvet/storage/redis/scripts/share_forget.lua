-- Delete the state of a share group. A Redis group of which no share group has become is left alone.
--
-- Answers {'ok'}; or {'rescan'}, {'nostate'}, {'othertopic'}.

if not call('HGET', shares, group_field) then return {'ok'} end
call('XGROUP', 'DESTROY', stream, group)
call('HDEL', state_key, 'compaction')
local fields, acquired, acknowledged = call('HGETALL', shares), field_of('acquired', ''), field_of('acknowledged', '')
for i = 1, #fields, 2 do
  local name = fields[i]
  if string.sub(name, 1, #acquired) == acquired or string.sub(name, 1, #acknowledged) == acknowledged then
    call('HDEL', shares, name)
  end
end
call('HDEL', shares, group_field)
return {'ok'}
