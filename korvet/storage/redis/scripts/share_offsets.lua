-- Return where a share group is.
--
-- Answers {'ok', ID of the first record that is not finished, number of entries that are not}; {'closed'}: the group has
-- not begun; or {'rescan'}, {'nostate'}, {'othertopic'}.

if not is_open() then return {'closed'} end
local last_id, pending = last_delivered(), call('XPENDING', stream, group)
local start = pending[2] or id_of(after(pair_of(last_id)))

-- The index has the number of entries up to each chunk.
local chunk = call('XREVRANGE', index, last_id, '-', 'COUNT', 1)[1]
local from, delivered = chunk and '(' .. chunk[1] or '-', chunk and tonumber(chunk[2][8]) or s.entries - s.length
local found
repeat
  found = call('XRANGE', stream, from, last_id, 'COUNT', 100)
  delivered = delivered + #found
  if #found > 0 then from = '(' .. found[#found][1] end
until #found < 100
return {'ok', start, format('%.0f', math.max(s.entries - delivered, 0) + pending[1])}
