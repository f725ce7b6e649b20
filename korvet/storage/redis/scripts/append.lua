-- Append batches to one partition, each whole or not at all.
--
-- ARGV    9 writer id (the broker process), 10 number of its call: a call that repeats the number changes nothing
--        11 producers expire after (ms)
--        12 number of replicas that have to be connected; WAIT follows, so a field is written even if there is nothing
--           to append. "" if the call does not wait
--        13 "1": LogAppendTime
--        14 number of batches; then for each
--           producer id (-1: none), epoch, first sequence, last sequence
--           records, shape, timestamp, size of the largest entry, number of pieces, number of data arguments
--           its transaction, as "version:number"; "" for a plain batch
--           the pieces, three each: records, bytes, largest timestamp
--           the data
-- The index is built from pieces; a small batch is one piece. Data, by shape:
--   batch  the record batch
--   kv k v -   columns: timestamps, keys, values, one of each for every record. Keys only if the shape has k,
--          values if it has v; timestamps only if the batch's own is "".
--   f      for each record: number of fields and values, which of them is the timestamp, the fields and values
--   marker the end of a transaction, with the number -1 of the one that is open: coordinator epoch, "commit" or "abort",
--          and in the batch layout the control batch
--
-- Answers {'ok', first ID, now, log start, epoch, next ID, '1' if there is more to trim, first ID of the
-- oldest open transaction or "-", then "index code details"
-- of the batches that were not appended: duplicate (its first ID and time), sequence (the expected one), lost (the same,
-- but those before may have been lost in a failover), epoch (the known one); ended, behind, plain: refused by the rules
-- of transaction_state.py; of markers also: ended (the result), coordinator (the known epoch)}. The appended batches have consecutive IDs from the first ID on.
-- Or {'nostate'}, {'othertopic'}: create the state first; {'rescan'}: settle first; {'stale'}: a later call has
-- overtaken this one, which changes nothing; {'replicas', connected ones}: too few are connected; {'exhausted'}: the stream's last ID leaves no room. Or an error, and
-- nothing was written.

local writer, number, expiration_ms = 'w:' .. ARGV[9], ARGV[10], tonumber(ARGV[11])
local touch, is_log_append_time = ARGV[12] ~= '', ARGV[13] == '1'
local waits_for_replicas = touch and ARGV[12] ~= '0'

local s, refusal = load(writer)
if not s then return refusal end

local past = s.other
if past then
  local past_number, answer = match(past, '^(%d+) %d+ (.*)$')
  if tonumber(past_number) > tonumber(number) then return {'stale'} end
  if past_number == number then
    if touch then call('HSET', state_key, 'touched', now) end
    local reply = {}
    for part in string.gmatch(answer, '[^|]+') do reply[#reply + 1] = part end
    return reply
  end
end

-- Without permission for INFO, WAIT finds out. A replica acknowledges every second; one that has not for longer than
-- min-replicas-max-lag has by default counts as not connected.
if waits_for_replicas then
  local info, connected = pcall('INFO', 'replication'), 0
  if type(info) == 'string' then
    for line in string.gmatch(info, 'slave%d+:([^\r]*)') do
      if match(line, 'state=online') and tonumber(match(line, 'lag=(%-?%d+)') or 0) <= 10 then connected = connected + 1 end
    end
    if connected < tonumber(ARGV[12]) then return {'replicas', format('%d', connected)} end
  end
end

if not settle(s, 1000) then
  save(s)
  return {'rescan'}
end

-- Idempotent producers, by the rules of producer_state.py. A producer is stored as "epoch time" and then up to
-- five of " first:last:id:time", the newest last. Batches of this call have their place in the call instead of an ID.

local producers = {}
local damaged = 0 -- number of producers that another client has overwritten

local function is_within(text, most)
  local number = tonumber(text)
  return number and number >= 0 and number <= most
end

-- Parse a stored producer; return nil if another client of this Redis wrote it.
local function parse_producer(stored)
  local epoch, time, rest = match(stored, '^(%-?%d+) (%d+)(.*)$')
  if not epoch or not (epoch == '-1' or is_within(epoch, 32767)) then return end
  local producer, size = {epoch = tonumber(epoch), time = tonumber(time), batches = {}}, 0
  for text, first, last, id, appended in string.gmatch(rest, '( (%d+):(%d+):(%d+%-%d+):(%-?%d+))') do
    if not (is_within(first, 2147483647) and is_within(last, 2147483647)) or #id > 41 or #appended > 19 then return end
    table.insert(producer.batches, {first = tonumber(first), last = tonumber(last), id = id, time = appended})
    size = size + #text
  end
  if size == #rest and #producer.batches <= 5 then return producer end
end

local function read_producer(producer_id)
  local stored = call('HGET', producers_key, producer_id)
  if not stored then return {is_new = true} end
  local producer = parse_producer(stored)
  if not producer then damaged = damaged + 1 end
  if not producer or now - producer.time >= expiration_ms then return {} end
  return producer
end

-- Whether the partition may have forgotten a producer that it does not know.
local function is_forgotten(producer_id)
  local from = call('HGET', state_key, 'producers.from')
  return s.has_lost_producers or not from or not tonumber(from) or tonumber(producer_id) < tonumber(from)
end

-- Return true if the producer's last known batch is from an earlier leader epoch: batches after it may have been lost.
local function is_of_earlier_epoch(producer)
  local last = producer.batches[#producer.batches]
  return last and last.id and is_id_before(last.id, match(s.epochs, '(%d+%-%d+)$'))
end

-- Return nothing, or the code and the details of the reason why the batch is not appended.
local function check_producer(producer, producer_id, epoch, first, last)
  if not producer.epoch then
    if producer.is_new and first ~= 0 and not is_forgotten(producer_id) then return 'sequence', 0 end
    return
  end
  if epoch == producer.epoch then
    for _, batch in ipairs(producer.batches) do
      if batch.first == first and batch.last == last then return 'duplicate', batch end
    end
  elseif epoch < producer.epoch then
    return 'epoch', producer.epoch
  end
  local expected, last_batch = 0, producer.batches[#producer.batches]
  if epoch == producer.epoch and last_batch then expected = (last_batch.last + 1) % 2147483648 end
  if first > expected and epoch == producer.epoch and is_of_earlier_epoch(producer) then
    -- Lost batches that waited for replicas were not acknowledged. The producer sends them again, and takes a later batch
    -- that is accepted as a proof of them. OUT_OF_ORDER_SEQUENCE_NUMBER would let librdkafka begin with a new producer id
    -- and store the batches before the gap twice.
    if waits_for_replicas then return 'lost', expected end
    if is_forgotten(producer_id) then return end
  end
  if first ~= expected then return 'sequence', expected end
end

local function remember_batch(producer, epoch, batch)
  if producer.epoch ~= epoch then producer.epoch, producer.batches = epoch, {} end
  table.insert(producer.batches, batch)
  if #producer.batches > 5 then table.remove(producer.batches, 1) end
  producer.is_changed = true
end

-- Transactions, by the rules of transaction_state.py. The last one of a producer is stored as
-- "number epoch coordinator-epoch open|commit|abort first-ID time", the first ID as "-" without records. The first record
-- of one that this call begins has its place in the call instead of an ID. The number -1 of an open one is unknown: it was
-- rebuilt from its records (see rebuild.lua), and takes the number of the next batch or marker of its producer.

-- Functions about transactions, made by the first batch of a call that needs them: it takes some 10 us.
local tx
local function new_tx()
  local function is_number(text, most) return text == '-1' or is_within(text, most) end

  local function is_entry_id(text)
    local ms, seq = match(text, '^(%d+)%-(%d+)$')
    return ms and #ms <= 16 and #seq <= 16
  end

  local transactions = {}
  local changes = {} -- of $open, in the order of the log: a transaction's begin, or its end

  local function transaction_of(producer_id)
    local transaction = transactions[producer_id]
    if transaction then return transaction end
    transaction = {}
    local stored = call('HGET', transactions_key, producer_id)
    if stored then
      local number, epoch, coordinator, result, first, time = match(stored, '^(%-?%d+) (%-?%d+) (%-?%d+) (%a+) (%S+) (%d+)$')
      local is_whole = number and is_number(number, 9007199254740991) and is_number(epoch, 32767)
        and is_number(coordinator, 2147483647)
        and (result == 'open' and is_entry_id(first) or (result == 'commit' or result == 'abort'))
      if not is_whole then
        damaged = damaged + 1
      elseif result == 'open' or now - tonumber(time) < expiration_ms then
        transaction = {number = tonumber(number), epoch = tonumber(epoch), coordinator = tonumber(coordinator),
          result = result, first = first}
      end
    else
      transaction.is_new = true
    end
    transactions[producer_id] = transaction
    return transaction
  end

  local function has_passed(transaction, number)
    return transaction.number and (transaction.number > number or transaction.number == number and transaction.result ~= 'open')
  end

  -- Return nothing, or the code and the details of the reason why the batch is not appended.
  local function check_transaction(producer_id, epoch, first, version, number)
    local last = transaction_of(producer_id)
    if last.number then
      if epoch < last.epoch then return 'epoch', last.epoch end
      if last.result == 'open' and (last.number == number or last.number < 0) then return end
      if has_passed(last, number) then return 'ended', 'number' end
      if last.result == 'open' then return 'behind', last.number end
    end
    if version >= 2 and first ~= 0 then return 'sequence', 0 end
  end

  local function begin_transaction(producer_id, epoch, number, place)
    local last = transactions[producer_id]
    if last.result == 'open' then
      if last.epoch ~= epoch or last.number ~= number then
        last.epoch, last.number, last.is_changed = epoch, number, true
      end
      return
    end
    transactions[producer_id] = {number = number, epoch = epoch, coordinator = last.coordinator or -1, result = 'open',
      place = place, is_new = last.is_new, is_changed = true}
    changes[#changes + 1] = transactions[producer_id]
    changes[#changes].producer_id = producer_id
  end

  local function check_marker(producer, producer_id, epoch, version, number, coordinator)
    local last = transaction_of(producer_id)
    if number >= 0 and has_passed(last, number) then return 'ended', last.result end
    local known, is_open = math.max(producer.epoch or -1, last.epoch or -1), last.result == 'open'
    local needs_higher_epoch = is_open and number < 0 and version >= 2
    if epoch < known + (needs_higher_epoch and 1 or 0) then return 'epoch', known end
    if last.coordinator and coordinator < last.coordinator then return 'coordinator', last.coordinator end
    if is_open and number >= 0 and last.number >= 0 and number ~= last.number then return 'behind', last.number end
  end

  local function end_transaction(producer, producer_id, epoch, version, number, coordinator, result, place)
    local last = transactions[producer_id]
    local ended = {number = number, epoch = epoch, coordinator = coordinator, result = result, first = '-',
      marker = place, is_new = last.is_new, is_changed = true, producer_id = producer_id}
    if number < 0 and last.number then ended.number = last.number end
    if last.result == 'open' then ended.opened = last end
    transactions[producer_id] = ended
    changes[#changes + 1] = ended
    -- A producer of version 1 that was forgotten goes on with any sequence.
    local is_raised = version >= 2 or producer.is_new and not is_forgotten(producer_id)
    if producer.epoch then is_raised = epoch > producer.epoch end
    if is_raised then
      producer.epoch, producer.batches, producer.is_changed = epoch, {}, true
    end
  end

  -- As failed_sequences.py: after a batch that its producer sends again, later ones of this call must not overtake it, and
  -- get the same code.

  local function is_sequence_later(sequence, other)
    local distance = (sequence - other) % 2147483648
    return distance > 0 and distance < 1073741824
  end

  local function is_behind_failed(producer, epoch, first)
    local failed = producer.failed
    if epoch < failed.epoch then return false end
    if epoch == failed.epoch then
      if is_sequence_later(first, failed.last) then
        failed.last = first
        return true
      end
      if is_sequence_later(failed.first, first) then return false end
    end
    producer.failed = nil
    return false
  end

  -- Return the fields of a marker's entry.
  local function marker_fields(batch, data, text_of_now)
    local coordinator, result, whole = ARGV[data], ARGV[data + 1], ARGV[data + 2]
    if layout == 'batch' then
      if is_log_append_time then return {'$batch', whole, '$time', text_of_now, '$control', result} end
      return {'$batch', whole, '$control', result}
    end
    local time = is_log_append_time and text_of_now or ARGV[batch.at + 6]
    local fields = {'$control', result, 'timestamp', time, '$coordinator', coordinator}
    if is_log_append_time then fields[#fields + 1], fields[#fields + 2] = '$timestamp.type', '1' end
    fields[#fields + 1], fields[#fields + 2] = '$producer', ARGV[batch.at] .. ':' .. ARGV[batch.at + 1]
    return fields
  end

  return {transactions = transactions, changes = changes, transaction_of = transaction_of,
    check = check_transaction, begin = begin_transaction, check_marker = check_marker, finish = end_transaction,
    is_behind_failed = is_behind_failed, marker_fields = marker_fields}
end

-- First check all batches.

local accepted, others, total = {}, {}, 0
local at = 15
for i = 1, tonumber(ARGV[14]) do
  local producer_id, records, pieces = ARGV[at], tonumber(ARGV[at + 4]), tonumber(ARGV[at + 8])
  local why, details
  if producer_id ~= '-1' then
    local producer = producers[producer_id] or read_producer(producer_id)
    producers[producer_id] = producer
    local epoch, first, last = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local version, number = nil, nil
    if ARGV[at + 10] ~= '' then
      version, number = match(ARGV[at + 10], '^(%d+):(%-?%d+)$')
      version, number = tonumber(version), tonumber(number)
      tx = tx or new_tx()
    end
    if ARGV[at + 5] == 'marker' then
      local data = at + 11 + 3 * pieces
      local coordinator = tonumber(ARGV[data])
      why, details = tx.check_marker(producer, producer_id, epoch, version, number, coordinator)
      if not why then
        tx.finish(producer, producer_id, epoch, version, number, coordinator, ARGV[data + 1], total)
      end
    elseif producer.failed and tx.is_behind_failed(producer, epoch, first) then
      why, details = producer.failed.why, producer.failed.details
    else
      why, details = check_producer(producer, producer_id, epoch, first, last)
      if not why and number then
        why, details = tx.check(producer_id, epoch, first, version, number)
        if not why then tx.begin(producer_id, epoch, number, total) end
        if why == 'ended' or why == 'behind' then
          producer.failed = {epoch = epoch, first = first, last = first, why = why, details = details}
        end
      elseif not why and (tx or s.unstable ~= '') then
        tx = tx or new_tx()
        local transaction = tx.transaction_of(producer_id)
        if transaction.result == 'open' then why, details = 'plain', transaction.number end
      end
      if not why then remember_batch(producer, epoch, {first = first, last = last, place = total}) end
    end
  end
  if why then
    others[#others + 1] = {i - 1, why, details}
  else
    accepted[#accepted + 1] = {at = at, place = total, records = records, pieces = pieces}
    total = total + records
  end
  at = at + 11 + 3 * pieces + tonumber(ARGV[at + 9])
end

-- Then add the entries. Only the first write may be refused: Redis is full, or the user has lost a right since the state
-- was created. HSET is tried before XADD, since entries without their state would be added twice. Later commands that
-- only remove something may fail.

local text_of_now = format('%.0f', now)
local base_ms, base_seq

local function choose_base()
  base_ms, base_seq = s.ms, s.seq
  if mask > 0 and now > base_ms then base_ms, base_seq = now, 0 end
  return plus(base_ms, base_seq, total) <= highest_ms
end

-- Functions that add an entry, by shape; `extra` has the further fields that all entries of a batch share.
local extra
local add = {
  ['kv'] = function(put, id, time, key, value)
    return put('XADD', stream, id, 'key', key, 'value', value, 'timestamp', time, unpack(extra))
  end,
  ['v'] = function(put, id, time, value)
    return put('XADD', stream, id, 'value', value, 'timestamp', time, unpack(extra))
  end,
  ['k'] = function(put, id, time, key)
    return put('XADD', stream, id, 'key', key, 'timestamp', time, unpack(extra))
  end,
  ['-'] = function(put, id, time) return put('XADD', stream, id, 'timestamp', time, unpack(extra)) end,
}

local put = pcall -- until the first entry is in

-- Return true if Redis accepted the entry, else set `failure` to its error. It accepts all entries after the first.
local failure
local function is_in(reply)
  if put == pcall then
    if type(reply) == 'table' and reply.err then
      failure = reply
      return false
    end
    put = call
  end
  return true
end

-- Return a function that returns consecutive IDs. Formatting numbers would take a tenth of the time of an entry, so an
-- ID's ending, which soon repeats, is formatted once, and its beginning only when the endings start again.
local ends, ends_format = {}, nil
local function ids_from(ms, seq)
  local high, low, span, beginning = ms, seq, mask + 1, nil
  if mask == 0 then high, low, span = math.floor(ms / 1000), ms % 1000, 1000 end
  local function turn()
    local wanted = mask > 0 and '%d' or high > 0 and '%03d-0' or '%d-0'
    if wanted ~= ends_format then ends, ends_format = {}, wanted end
    beginning = mask > 0 and format('%.0f-', high) or high > 0 and format('%.0f', high) or ''
  end
  turn()
  return function()
    if low == span then
      high, low = high + 1, 0
      turn()
    end
    local ending = ends[low]
    if not ending then
      ending = format(ends_format, low)
      ends[low] = ending
    end
    low = low + 1
    return beginning .. ending
  end
end

local function add_columns(batch, data)
  local records, shape, time = batch.records, ARGV[batch.at + 5], ARGV[batch.at + 6]
  local adder, producer_id = add[shape], ARGV[batch.at]
  extra = is_log_append_time and {'$timestamp.type', '1'} or {}
  if ARGV[batch.at + 10] ~= '' then extra[#extra + 1], extra[#extra + 2] = '$transactional', '1' end
  if producer_id ~= '-1' then
    extra[#extra + 1] = '$producer'
    extra[#extra + 1] = producer_id .. ':' .. ARGV[batch.at + 1]
  end
  local times, first, second = nil, data, nil
  if is_log_append_time then
    time = text_of_now
  elseif time == '' then
    times, first = data, data + records
  end
  if shape == 'kv' then second = first + records end
  local next_id = ids_from(plus(base_ms, base_seq, batch.place))
  for i = 0, records - 1 do
    if times then time = ARGV[times + i] end
    local reply = adder(put, next_id(), time, ARGV[first + i], second and ARGV[second + i])
    if put == pcall and not is_in(reply) then return false end
  end
  return true
end

local function add_fields(batch, data)
  local next_id = ids_from(plus(base_ms, base_seq, batch.place))
  for _ = 1, batch.records do
    local count = tonumber(ARGV[data])
    if is_log_append_time then ARGV[data + 1 + tonumber(ARGV[data + 1])] = text_of_now end
    if not is_in(put('XADD', stream, next_id(), unpack(ARGV, data + 2, data + 1 + count))) then return false end
    data = data + 2 + count
  end
  return true
end

local function add_batch(batch, data)
  local id = id_of(plus(base_ms, base_seq, batch.place + batch.records - 1))
  if is_log_append_time then
    return is_in(put('XADD', stream, id, '$batch', ARGV[data], '$time', text_of_now))
  end
  return is_in(put('XADD', stream, id, '$batch', ARGV[data]))
end

local function add_all()
  for _, batch in ipairs(accepted) do
    local shape, data = ARGV[batch.at + 5], batch.at + 11 + 3 * batch.pieces
    local is_added
    if shape == 'marker' then
      local id, fields = id_of(plus(base_ms, base_seq, batch.place)), tx.marker_fields(batch, data, text_of_now)
      is_added = is_in(put('XADD', stream, id, unpack(fields)))
    elseif shape == 'batch' then
      is_added = add_batch(batch, data)
    elseif shape == 'f' then
      is_added = add_fields(batch, data)
    else
      is_added = add_columns(batch, data)
    end
    if not is_added then return false end
  end
  return true
end

-- Another client added an entry and deleted it, so the stream's last ID is above its entries. Only XINFO has that ID.
local function skip_to_last_generated()
  local info = call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then s.ms, s.seq = after(pair_of(info[i + 1])) end
  end
end

if total > 0 then
  if not choose_base() then return {'exhausted'} end
  -- Try the commands that change $open: if the Redis user lacks a permission, or another client has overwritten a key,
  -- fail here and not after the records.
  for _, change in ipairs(tx and tx.changes or {}) do
    local reply = change.opened and pcall('XDEL', open_key, '0-1') or pcall('XLEN', open_key)
    if type(reply) ~= 'table' and change.opened then reply = pcall('XLEN', aborted_key) end
    if type(reply) == 'table' and reply.err then return reply end
  end
  local reply = pcall('HSET', state_key, 'touched', now)
  if type(reply) == 'table' and reply.err then return reply end
  if not add_all() then
    if not string.find(failure.err, 'equal or smaller', 1, true) then return failure end
    skip_to_last_generated()
    if not choose_base() then return {'exhausted'} end
    if not add_all() then return failure end
  end
end

-- Redis refuses nothing from here on. Update the index, retention and producers, and build the answer.

if total > 0 and s.chunk_opened > 0 and is_expired(s, s.chunk_max, s.chunk_appended, s.bytes) then
  close_chunk(s, id_of(before(s.ms, s.seq))) -- otherwise old records would stay as long as new ones are appended
end
if total > 0 and s.length == 0 then
  local records = layout == 'batch' and accepted[1].records or 1
  s.first, s.has_moved = id_of(plus(base_ms, base_seq, records - 1)), true
end
for _, batch in ipairs(accepted) do
  local piece, place, largest = batch.at + 11, batch.place, tonumber(ARGV[batch.at + 7])
  if largest > s.largest then s.largest = largest end
  for _ = 1, batch.pieces do
    local records = tonumber(ARGV[piece])
    local entries = layout == 'batch' and 1 or records
    local max_timestamp = is_log_append_time and text_of_now or ARGV[piece + 2]
    place = place + records
    s.length = s.length + entries
    if cover(s, entries, tonumber(ARGV[piece + 1]), max_timestamp) then
      close_chunk(s, id_of(plus(base_ms, base_seq, place - 1)))
    end
    piece = piece + 3
  end
end
if total > 0 then s.ms, s.seq = plus(base_ms, base_seq, total) end
local is_expired_in_full, has_more_to_trim = try(function() return total > 0 and expire(s, 64) end)
if not is_expired_in_full then has_more_to_trim = false end

-- Update $open and $aborted in the order of the log.

local is_transaction_new = false
local function store_transactions()
  local function id_at(place) return id_of(plus(base_ms, base_seq, place)) end

  for _, change in ipairs(tx.changes) do
    local producer_id = change.producer_id
    if change.place then
      change.first = id_at(change.place)
      -- Another client may have written to the stream. The records are added by now, so an error here is ignored.
      pcall('XADD', open_key, change.first, 'producer', producer_id, 'time', text_of_now)
    elseif change.opened then
      change.first = change.opened.first
      call('XDEL', open_key, change.first)
      if change.result == 'abort' then
        local marker = id_at(change.marker)
        local stable = first_open()
        if stable == '' then stable = id_of(after(pair_of(marker))) end
        pcall('XADD', aborted_key, marker, 'producer', producer_id, 'first', change.first, 'stable', stable)
      end
    end
  end
  if #tx.changes > 0 then
    local unstable = first_open()
    s.has_other_unstable, s.unstable = unstable ~= s.unstable, unstable
  end
  for producer_id, transaction in pairs(tx.transactions) do
    if transaction.is_changed then
      call('HSET', transactions_key, producer_id, format('%.0f %d %d %s %s %.0f', transaction.number, transaction.epoch,
        transaction.coordinator, transaction.result, transaction.first, now))
      is_transaction_new = is_transaction_new or transaction.is_new
    end
  end
end
if tx then store_transactions() end

local time_of_batches = is_log_append_time and text_of_now or '-1'
local is_producer_new = false
for producer_id, producer in pairs(producers) do
  if producer.is_changed then
    local parts = {format('%d %.0f', producer.epoch, now)}
    for _, batch in ipairs(producer.batches) do
      if batch.place then
        batch.id, batch.time = id_of(plus(base_ms, base_seq, batch.place)), time_of_batches
      end
      parts[#parts + 1] = format('%.0f:%.0f:%s:%s', batch.first, batch.last, batch.id, batch.time)
    end
    call('HSET', producers_key, producer_id, table.concat(parts, ' '))
    is_producer_new = is_producer_new or producer.is_new
  end
end

-- A call with a new producer checks some old ones, so that expiry bounds the number of producers.
local function forget_old_producers()
  local cursor = call('HGET', state_key, 'producers.cursor') or '0'
  local has_expired = false
  local scanned = call('HSCAN', producers_key, cursor, 'COUNT', 20)
  for i = 1, #scanned[2], 2 do
    local time = tonumber(match(scanned[2][i + 1], '^%-?%d+ (%d+)'))
    if not time then damaged = damaged + 1 end
    if not time or now - time >= expiration_ms then
      call('HDEL', producers_key, scanned[2][i])
      has_expired = true
    end
  end
  if has_expired then forget_producers() end
  call('HSET', state_key, 'producers.cursor', scanned[1])
end
if is_producer_new then try(forget_old_producers) end

-- In the same way, a call with a new producer's transaction checks some old ones.
local function forget_old_transactions()
  local cursor = call('HGET', state_key, 'transactions.cursor') or '0'
  local scanned = call('HSCAN', transactions_key, cursor, 'COUNT', 20)
  for i = 1, #scanned[2], 2 do
    local result, time = match(scanned[2][i + 1], '(%a+) %S+ (%d+)$')
    if result ~= 'open' and (not time or now - tonumber(time) >= expiration_ms) then
      call('HDEL', transactions_key, scanned[2][i])
    end
  end
  call('HSET', state_key, 'transactions.cursor', scanned[1])
end
if is_transaction_new then try(forget_old_transactions) end

local reply = {'ok', id_of(base_ms or s.ms, base_seq or s.seq), text_of_now, log_start(s), epoch_of(s), id_of(s.ms, s.seq),
  has_more_to_trim and '1' or '0', s.unstable == '' and '-' or s.unstable}
if damaged > 0 then reply[#reply + 1] = format('-1 damaged %d', damaged) end
for _, other in ipairs(others) do
  local i, why, details = unpack(other)
  if why == 'duplicate' then
    details = (details.id or id_of(plus(base_ms, base_seq, details.place))) .. ' ' .. (details.time or time_of_batches)
  end
  reply[#reply + 1] = format('%d %s %s', i, why, details)
end

-- Every start of a broker adds a writer. If there are many, delete those that can have no call under way any more.
local function forget_old_writers()
  local fields, old, writers = call('HGETALL', state_key), {}, 0
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'w:' then
      writers = writers + 1
      if now - tonumber(match(fields[i + 1], '^%d+ (%d+)')) > 600000 then old[#old + 1] = fields[i] end
    end
  end
  if writers > 32 and #old > 0 then call('HDEL', state_key, unpack(old, 1, math.min(#old, 1000))) end
end

if total > 0 then
  save(s, writer, number .. ' ' .. text_of_now .. ' ' .. table.concat(reply, '|'))
  if not past then try(forget_old_writers) end
elseif s.dirty then
  save(s)
elseif touch then
  call('HSET', state_key, 'touched', now)
end
return reply
