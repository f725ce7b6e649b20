-- Append batches under the usual circumstances, without a function: defining those of the other files takes a third of
-- the time of a small append. This file stands before partition.lua and append.lua, which describe KEYS and ARGV. It
-- applies their rules, issues the same writes and returns the same answer; what it does not expect, it leaves to
-- them, and has written nothing by then but the time in `touched`.
--
-- Unexpected are: too few replicas, LogAppendTime, markers, batches of several index pieces or of many
-- entries; a state that is missing, damaged, or of another server process; changes by other clients; a first call of a
-- broker process; producers and transactions that are unknown, begin, or break a rule; chunks that expire; damaged values.

repeat
  local KEYS, ARGV, call, pcall, tonumber = KEYS, ARGV, redis.call, redis.pcall, tonumber
  local format, match, gmatch, find, sub = string.format, string.match, string.gmatch, string.find, string.sub
  local floor = math.floor
  if ARGV[13] == '1' or ARGV[20] == 'marker' or ARGV[23] ~= '1' or ARGV[25] ~= '' and ARGV[17] == '0' then break end
  if ARGV[20] ~= 'batch' and tonumber(ARGV[19]) > 16 then break end

  -- The state, as `load` reads it, and the stream as `settle` finds it
  local stream, state_key, index = KEYS[1], KEYS[2], KEYS[3]
  local clock = call('TIME')
  local now = clock[1] * 1000 + floor(clock[2] / 1000)
  local writer, number = 'w:' .. ARGV[9], ARGV[10]
  local f = call('HMGET', state_key, 'topic', 'next', 'start', 'length', 'entries', 'bytes', 'trimmed', 'largest',
    'skipped', 'epochs', 'checked', 'chunk.bytes', 'chunk.opened', 'chunk.appended', 'chunk.max_timestamp',
    'stretch.bytes', 'stretch.max_timestamp', 'earliest', 'server', 'visible', 'unstable', writer)
  if f[1] ~= ARGV[1] or not f[22] then break end
  local next_id, log_start, earliest, epochs = f[2] or '', f[3] or '', f[18], f[10] or ''
  local length, entries, bytes, largest = tonumber(f[4]), tonumber(f[5]), tonumber(f[6]), tonumber(f[8])
  local checked, chunk_bytes, opened = tonumber(f[11]) or 0, tonumber(f[12]), tonumber(f[13])
  local chunk_appended, chunk_max, chunk_time = tonumber(f[14]), f[15], tonumber(f[15])
  local stretch_bytes, stretch_max, stretch_time = tonumber(f[16]), f[17], tonumber(f[17])
  local unstable = f[21] or ''
  local ms, seq = match(next_id, '^(%d+)%-(%d+)$')
  local start_ms, start_seq = match(log_start, '^(%d+)%-(%d+)$')
  local epoch = match(epochs, '^%d+:%d+%-%d+') and match(epochs, '(%d+):%d+%-%d+$')
  if not (ms and start_ms and epoch and length and entries and bytes and tonumber(f[7]) and largest and tonumber(f[9])
    and chunk_bytes and opened and chunk_appended and chunk_time and stretch_bytes and stretch_time)
    or length == 0 then break end
  if earliest and earliest ~= log_start then
    local earliest_ms, earliest_seq = match(earliest, '^(%d+)%-(%d+)$')
    if not earliest_ms then break end
    local difference = tonumber(start_ms) - tonumber(earliest_ms)
    if difference < 0 or difference == 0 and tonumber(start_seq) < tonumber(earliest_seq) then log_start = earliest end
  end
  local past_number = match(f[22], '^(%d+) ')
  if not past_number or tonumber(past_number) >= tonumber(number) then break end
  if ARGV[12] ~= '' and ARGV[12] ~= '0' then
    local info, connected = pcall('INFO', 'replication'), 0
    if type(info) ~= 'string' then break end
    for line in gmatch(info, 'slave%d+:([^\r]*)') do
      if match(line, 'state=online') and tonumber(match(line, 'lag=(%-?%d+)') or 0) <= 10 then connected = connected + 1 end
    end
    if connected < tonumber(ARGV[12]) then break end
  end
  ms, seq = tonumber(ms), tonumber(seq)
  local run_id, replicated, known_epoch, known_id = match(ARGV[8], '^(%S*) %S+ %d+ (%d) ?(%d*) ?(%S*)$')
  if not run_id or run_id ~= '' and run_id ~= f[19] or known_epoch ~= '' and known_epoch ~= epoch then break end
  if replicated == '1' and not match(f[20] or '', '^%d+%-%d+$') or replicated == '0' and f[20] then break end
  if known_id ~= '' and known_id ~= next_id then
    local known_ms, known_seq = match(known_id, '^(%d+)%-(%d+)$')
    known_ms = tonumber(known_ms)
    if not known_ms or ms < known_ms or ms == known_ms and seq < tonumber(known_seq) then break end
  end
  if call('XLEN', stream) ~= length or #call('XRANGE', stream, next_id, '+', 'COUNT', 1) > 0 then break end

  -- The batches: their size, their producers and transactions
  local mask, retention_ms, retention_bytes = tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[6])
  local span, text_of_now, count = mask + 1, format('%.0f', now), tonumber(ARGV[14])
  local base_ms, base_seq = ms, seq
  if mask > 0 and now > base_ms then base_ms, base_seq = now, 0 end
  local at, total, size, is_usual, producers = 15, 0, 0, true, nil
  for _ = 1, count do
    local producer_id, records, shape, transaction = ARGV[at], tonumber(ARGV[at + 4]), ARGV[at + 5], ARGV[at + 10]
    local time = tonumber(ARGV[at + 13])
    is_usual = ARGV[at + 8] == '1' and shape ~= 'marker' and (shape == 'batch' or records <= 16)
      and time and time < 9007199254740992 and time > -9007199254740992
    if not is_usual then break end
    if producer_id ~= '-1' then
      local first, last = ARGV[at + 2], ARGV[at + 3]
      producers = producers or {}
      local producer = producers[producer_id]
      if not producer then
        local stored = call('HGET', KEYS[5], producer_id) or ''
        local stored_epoch, used, batches = match(stored, '^(%d+) (%d+)()')
        is_usual = stored_epoch == ARGV[at + 1] and now - tonumber(used) < tonumber(ARGV[11])
          and not find(stored, ' ' .. first .. ':' .. last .. ':', batches, true)
        if not is_usual then break end
        -- `parse_producer` decides about longer numbers, which may be too large.
        local known, ended = 0, batches
        producer = {epoch = stored_epoch}
        for a, b, c, d, after in gmatch(stored, ' ()%d+:()%d+:()%d+%-%d+:()%-?%d+()') do
          if a ~= ended + 1 or b - a > 10 or c - b > 10 or d - c > 42 or after - d > 19 then break end
          known, ended = known + 1, after
          producer[known], producer.last = sub(stored, a - 1, after - 1), sub(stored, b, c - 2)
        end
        is_usual = known > 0 and known <= 5 and ended == #stored + 1
        if not is_usual then break end
        producers[producer_id] = producer
      end
      is_usual = producer.epoch == ARGV[at + 1] and tonumber(first) == tonumber(producer.last) + 1
      if is_usual and (transaction ~= '' or unstable ~= '') then
        local begun = call('HGET', sub(KEYS[2], 1, -6) .. 'transactions', producer_id)
        if transaction == '' then
          is_usual = not begun
        else
          local open, open_epoch, coordinator, first_ms, first_seq = match(begun or '',
            '^(%d+) (%d+) (%-?%d+) open (%d+)%-(%d+) %d+$')
          is_usual = open and unstable ~= '' and open == match(transaction, '^%d+:(%d+)$') and #open <= 15
            and open_epoch == producer.epoch and (coordinator == '-1' or match(coordinator, '^%d') and #coordinator <= 9)
            and #first_ms <= 16 and #first_seq <= 16
        end
      end
      if not is_usual then break end
      local sum = base_seq + total
      producer[#producer + 1] = format(' %s:%s:%.0f-%.0f:-1', first, last, base_ms + floor(sum / span), sum % span)
      producer.last = last
    elseif transaction ~= '' then
      is_usual = false
      break
    end
    total, size = total + records, size + tonumber(ARGV[at + 12])
    at = at + 14 + tonumber(ARGV[at + 9])
  end
  if not is_usual or total == 0 then break end
  if base_ms + floor((base_seq + total) / span) > tonumber(ARGV[3]) then break end

  -- The index and retention, as `cover`, `close_chunk` and `expire` work
  local chunk_limit, chunk_ms = 65536, math.huge
  if retention_bytes >= 0 then chunk_limit = math.min(chunk_limit, math.max(1, retention_bytes / 8)) end
  if retention_ms >= 0 then
    chunk_ms = math.max(1000, retention_ms / 16)
    local keep_ms = tonumber(ARGV[7])
    if opened > 0 and now - (chunk_time < 0 and chunk_appended or chunk_time) > retention_ms
      and now - chunk_appended >= keep_ms or keep_ms <= 0 then break end
  end
  if retention_bytes == 0 or bytes + size - stretch_bytes >= 16777216 then break end
  local chunk_from = opened == 0 and bytes or chunk_bytes
  local may_close = bytes + size - chunk_from >= chunk_limit or opened > 0 and now - opened >= chunk_ms
  if retention_ms >= 0 or retention_bytes >= 0 then
    if may_close or now - checked >= 1000 then
      local chunk = call('XRANGE', index, '-', '+', 'COUNT', 1)[1]
      if chunk then
        local time, appended, bytes_before = tonumber(chunk[2][2]), tonumber(chunk[2][4]), tonumber(chunk[2][6])
        if not (time and appended and bytes_before) then break end
        if retention_ms >= 0 and now - (time < 0 and appended or time) > retention_ms
          or retention_bytes >= 0 and bytes + size - bytes_before >= retention_bytes then break end
      elseif may_close then
        break
      end
      checked = now
    end
  elseif may_close then
    checked = 0
  end

  -- The writes. HSET is tried before XADD, as in append.lua, which also finds out why Redis refuses the first entry.
  local reply = pcall('HSET', state_key, 'touched', now)
  if type(reply) == 'table' and reply.err then break end
  local put, stretch_changed, last_id = pcall, false, nil
  at, ms, seq = 15, base_ms, base_seq
  for _ = 1, count do
    local records, shape, time, data = tonumber(ARGV[at + 4]), ARGV[at + 5], ARGV[at + 6], at + 14
    if shape == 'batch' then
      local sum = seq + records - 1
      ms, seq = ms + floor(sum / span), sum % span
      last_id = format('%.0f-%.0f', ms, seq)
      reply = put('XADD', stream, last_id, '$batch', ARGV[data])
      if type(reply) == 'table' and reply.err then break end
      put = call
      if seq < mask then seq = seq + 1 else ms, seq = ms + 1, 0 end
      entries, length = entries + 1, length + 1
    else
      entries, length = entries + records, length + records
      local values, fields, used = data + (time == '' and records or 0), nil, nil
      for i = 0, records - 1 do
        last_id = format('%.0f-%.0f', ms, seq)
        if shape == 'f' then
          local number_of_fields = tonumber(ARGV[data])
          reply = put('XADD', stream, last_id, unpack(ARGV, data + 2, data + 1 + number_of_fields))
          data = data + 2 + number_of_fields
        else
          fields, used = {}, 0
          if shape == 'k' or shape == 'kv' then
            fields[1], fields[2], used = 'key', ARGV[values + i], 2
          end
          if shape ~= 'k' and shape ~= '-' then
            fields[used + 1], fields[used + 2] = 'value', ARGV[values + (used > 0 and records or 0) + i]
            used = used + 2
          end
          fields[used + 1], fields[used + 2] = 'timestamp', time == '' and ARGV[data + i] or time
          if ARGV[at + 10] ~= '' then
            fields[used + 3], fields[used + 4], used = '$transactional', '1', used + 2
          end
          if ARGV[at] ~= '-1' then fields[used + 3], fields[used + 4] = '$producer', ARGV[at] .. ':' .. ARGV[at + 1] end
          reply = put('XADD', stream, last_id, unpack(fields))
        end
        if type(reply) == 'table' and reply.err then break end
        put = call
        if seq < mask then seq = seq + 1 else ms, seq = ms + 1, 0 end
      end
      if put == pcall then break end
    end
    local max_timestamp = ARGV[at + 13]
    local timestamp = tonumber(max_timestamp)
    if opened == 0 then opened, chunk_bytes, chunk_max, chunk_time = now, bytes, max_timestamp, timestamp end
    if timestamp > chunk_time then chunk_max, chunk_time = max_timestamp, timestamp end
    if tonumber(ARGV[at + 7]) > largest then largest = tonumber(ARGV[at + 7]) end
    bytes = bytes + tonumber(ARGV[at + 12])
    if bytes - chunk_bytes >= chunk_limit or now - opened >= chunk_ms then
      pcall('XADD', index, last_id, 'max_timestamp', chunk_max, 'appended', now, 'bytes', bytes, 'entries', entries)
      if chunk_time > stretch_time then
        stretch_max, stretch_time, stretch_changed = chunk_max, chunk_time, true
      end
      opened, chunk_max, chunk_time = 0, '-9223372036854775808', -9223372036854775808
    end
    at = at + 14 + tonumber(ARGV[at + 9])
  end
  if put == pcall then break end
  if producers then
    for producer_id, producer in pairs(producers) do
      local batches = table.concat(producer, '', math.max(1, #producer - 4))
      call('HSET', KEYS[5], producer_id, producer.epoch .. ' ' .. text_of_now .. batches)
    end
  end
  local base_id = format('%.0f-%.0f', base_ms, base_seq)
  next_id = format('%.0f-%.0f', ms, seq)
  if unstable == '' then unstable = '-' end
  if stretch_changed then call('HSET', state_key, 'stretch.max_timestamp', stretch_max) end
  call('HSET', state_key, 'next', next_id, 'length', length, 'entries', entries, 'bytes', bytes, 'largest', largest,
    'checked', checked, 'chunk.bytes', chunk_bytes, 'chunk.opened', opened, 'chunk.appended', now,
    'chunk.max_timestamp', chunk_max, writer, number .. ' ' .. text_of_now .. ' ok|' .. base_id .. '|' .. text_of_now
    .. '|' .. log_start .. '|' .. epoch .. '|' .. next_id .. '|0|' .. unstable)
  return {'ok', base_id, text_of_now, log_start, epoch, next_id, '0', unstable}
until true
