-- Rebuild the transactions of a partition whose state was created for an existing stream; stands before settle.lua.
--
-- `init` stores the last ID of such a stream in `rebuild.end`: entries up to there may be korvet's, of a state that
-- another client has deleted. Later ones of other clients never begin or end a transaction. The numbers of the rebuilt
-- transactions are unknown, and stored as -1.

local REBUILT_AT_ONCE = 16 -- entries; a batch may have a megabyte

-- Return the control type, the producer, its epoch and the coordinator epoch of an entry of a transaction; nil for others.
local function transaction_in_fields(fields)
  local values = {}
  for i = 1, #fields, 2 do values[fields[i]] = fields[i + 1] end
  local producer_id, epoch = match(values['$producer'] or '', '^(%d+):(%d+)$')
  local control = values['$control']
  if not producer_id or #producer_id > 19 or #epoch > 5 then return end
  if control == 'commit' or control == 'abort' then
    return control, producer_id, tonumber(epoch), tonumber(match(values['$coordinator'] or '', '^%d+$') or -1)
  end
  if values['$transactional'] == '1' then return 'open', producer_id, tonumber(epoch), -1 end
end

local function number_in(data, from, bytes)
  local number = 0
  for i = from, from + bytes - 1 do number = number * 256 + string.byte(data, i) end
  return number
end

local function transaction_in_batch(fields)
  local data = fields[2]
  if #data < 66 or string.byte(data, 17) ~= 2 or string.byte(data, 44) >= 128 or string.byte(data, 52) >= 128 then return end
  local attributes = string.byte(data, 23)
  if attributes % 32 < 16 then return end
  local control, coordinator = 'open', -1
  if attributes % 64 >= 32 then
    control = fields[#fields]
    if fields[#fields - 1] ~= '$control' or not (control == 'commit' or control == 'abort') then return end
    coordinator = number_in(data, #data - 4, 4) -- the value ends with it; 0 headers follow
  end
  return control, format('%.0f', number_in(data, 44, 8)), number_in(data, 52, 2), coordinator
end

local function transaction_in(entry)
  if pair_of(entry[1]) > highest_ms then return end
  if layout == 'batch' and entry[2][1] == '$batch' then return transaction_in_batch(entry[2]) end
  return transaction_in_fields(entry[2])
end

-- Another client may have written to the three keys, so errors are ignored.
local function rebuild_from(entry)
  local control, producer_id, epoch, coordinator = transaction_in(entry)
  if not control then return end
  local stored = call('HGET', transactions_key, producer_id) or ''
  local last_coordinator, result, first = match(stored, '^%-1 %d+ (%-?%d+) (%a+) (%S+) ')
  if control == 'open' then
    if result == 'open' then return end
    first, coordinator = first_record_id(entry), last_coordinator or -1
    pcall('XADD', open_key, first, 'producer', producer_id, 'time', format('%.0f', now))
  else
    if result == 'open' then
      pcall('XDEL', open_key, first)
    else
      first = '-'
    end
    if result == 'open' and control == 'abort' then
      local stable = first_open()
      if stable == '' then stable = id_of(after(pair_of(entry[1]))) end
      pcall('XADD', aborted_key, entry[1], 'producer', producer_id, 'first', first, 'stable', stable)
    end
  end
  call('HSET', transactions_key, producer_id,
    format('-1 %d %d %s %s %.0f', epoch, coordinator, control, first, now))
end

-- Read about `limit` entries; return true if there are no more to read.
local function rebuild(limit)
  local from, last = unpack(call('HMGET', state_key, 'rebuild.from', 'rebuild.end'))
  if not last then return true end
  from = from or '-'
  local seen, size = 0, 0
  while seen < limit and size < 1048576 do
    local entries = call('XRANGE', stream, from, last, 'COUNT', REBUILT_AT_ONCE)
    for _, entry in ipairs(entries) do
      rebuild_from(entry)
      local bytes = measure(entry, pair_of(entry[1]))
      seen, size, from = seen + 1, size + bytes, '(' .. entry[1]
    end
    if #entries < REBUILT_AT_ONCE then
      call('HDEL', state_key, 'rebuild.from', 'rebuild.end')
      call('HSET', state_key, 'unstable', first_open())
      return true
    end
  end
  call('HSET', state_key, 'rebuild.from', from)
  return false
end
