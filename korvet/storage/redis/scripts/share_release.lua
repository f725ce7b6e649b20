-- Release all records that a member of a share group has acquired, and delete its consumer.
--
-- ARGV   11 limit of deliveries
--
-- Answers {'ok'}; or {'rescan'}, {'nostate'}, {'othertopic'}.

local LEFT_BEHIND_MS = 3600000

if not is_open() then return {'ok'} end

local function forget(name)
  call('XGROUP', 'DELCONSUMER', stream, group, name)
  call('HDEL', shares, field_of('acquired', name), field_of('acknowledged', name))
end

local pending
repeat
  pending = call('XPENDING', stream, group, '-', '+', AT_ONCE, member)
  give_back(pending, tonumber(ARGV[11]))
until #pending < AT_ONCE
forget(member)

-- Members whose broker was killed leave consumers behind. XINFO CONSUMERS returns for each 2 its name, 4 the number of
-- its pending entries, 6 its idle time.
for _, each in ipairs(call('XINFO', 'CONSUMERS', stream, group)) do
  local is_unused = each[4] == 0 and each[6] > LEFT_BEHIND_MS
  if is_unused and call('HGET', shares, field_of('acquired', each[2])) then forget(each[2]) end
end
return {'ok'}
