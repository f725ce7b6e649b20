-- Shared by the scripts of one partition; stands before each of them.
--
-- KEYS    stream, $state, $index, $summary, $producers (see keys.py); calls with a transaction also have $transactions,
--         $open and $aborted. Others touch these seldom, and do not name them: while a slot of a cluster moves, a call
--         waits for all keys that it names, also for those that do not exist.
-- ARGV    1 topic id            4 layout: record | batch      7 kept at least (ms)
--         2 sequence mask       5 retention.ms, or -1         8 "run-id begins newest flag epoch next-id": the server, "" if
--         3 highest ms          6 retention.bytes, or -1        unknown; the leader epoch that begins there, "-" if
--                                                               unknown, 0 if none can begin; the newest one; 1 if
--                                                               min.insync.replicas is above 1, else 0; the log's end
--                                                               as the caller has seen it, or ""
--                                                           9 … the script's own arguments
--
-- Lua's numbers are doubles, exact up to 2^53; offsets may be larger. The scripts therefore work with entry IDs, or
-- their two numbers (ms, seq): offset + 1 under a mask of m is (ms, seq + 1), or (ms + 1, 0) after seq m. Dense offsets
-- have mask 0. IDs whose seq is above the mask, or whose ms has no offset, were not assigned by korvet.
--
-- Timestamps are Kafka's, any 64-bit number, and stay strings. If only doubles are compared, rounding keeps the order:
-- a timestamp that compares as larger is never smaller.
--
-- Redis does not roll back a script that fails halfway. Each script therefore first makes all checks, then the one
-- write that Redis may refuse (full, read-only, …), then the writes that cannot fail any more.

local try = pcall -- of Lua: catches errors of all calls in a function
local ARGV, call, pcall = ARGV, redis.call, redis.pcall -- locals are faster
local format, match = string.format, string.match

local stream, state_key, index, summary, producers_key = unpack(KEYS)
local own_keys = string.sub(state_key, 1, -6) -- without "state"
local transactions_key, open_key, aborted_key = own_keys .. 'transactions', own_keys .. 'open', own_keys .. 'aborted'
local topic_id, layout = ARGV[1], ARGV[4]
local mask, highest_ms = tonumber(ARGV[2]), tonumber(ARGV[3])
local retention_ms, retention_bytes, keep_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local is_replicated = match(ARGV[8], '^%S* %S+ %d+ (%d)') == '1'

local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- A chunk is the part of the log that one index entry covers, and the unit that retention drops. Chunks are therefore
-- smaller under a small retention.bytes, and under retention.ms if the topic has few appends.
local CHUNK_BYTES = 65536
if retention_bytes >= 0 then CHUNK_BYTES = math.min(CHUNK_BYTES, math.max(1, retention_bytes / 8)) end
local CHUNK_MS = math.huge
if retention_ms >= 0 then CHUNK_MS = math.max(1000, retention_ms / 16) end
local STRETCH_BYTES = 16777216

local NO_TIMESTAMP = '-9223372036854775808' -- below any other

-- IDs

local function id_of(ms, seq) return format('%.0f-%.0f', ms, seq) end

local function pair_of(id)
  local ms, seq = match(id, '^(%d+)%-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function is_before(ms, seq, other_ms, other_seq)
  return ms < other_ms or ms == other_ms and seq < other_seq
end

local function after(ms, seq)
  if seq < mask then return ms, seq + 1 end
  return ms + 1, 0
end

local function before(ms, seq)
  if seq > 0 then return ms, seq - 1 end
  return ms - 1, mask
end

local function plus(ms, seq, count)
  local sum = seq + count
  return ms + math.floor(sum / (mask + 1)), sum % (mask + 1)
end

-- Timestamps

local function is_later(a, b)
  local x, y = tonumber(a), tonumber(b)
  if x ~= y then return x > y end
  if #a ~= #b then return (#a > #b) == (x >= 0) end
  return a ~= b and (a > b) == (x >= 0)
end

local function is_timestamp(text)
  local digits = match(text, '^%-?(%d+)$')
  if not digits or #digits > 19 then return false end
  return #digits < 19 or digits <= '9223372036854775807'
end

-- The largest timestamp in a record batch's header, or a slightly larger number if a double cannot represent it.
local function batch_max_timestamp(batch)
  local a, b, c, d, e, f, g, h = string.byte(batch, 36, 43)
  if not h or a >= 128 then return '-1' end
  local number = ((a * 256 + b) * 256 + c) * 256 + d
  number = number * 4294967296 + ((e * 256 + f) * 256 + g) * 256 + h
  if number < 9007199254740992 then return format('%.0f', number) end
  if number > 9223372036854770000 then return '9223372036854775807' end
  return format('%.0f', number + 2048)
end

-- Bytes of an entry, and the largest timestamp of its records as consumers receive them.
local function measure(entry, ms)
  local fields, bytes, timestamp = entry[2], 0, nil
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    bytes = bytes + #name + #value
    if name == 'timestamp' then timestamp = is_timestamp(value) and value or nil end
  end
  if layout == 'batch' and fields[1] == '$batch' then
    local is_stamped = fields[3] == '$time' and is_timestamp(fields[4])
    timestamp = is_stamped and fields[4] or batch_max_timestamp(fields[2])
  end
  return bytes, timestamp or format('%.0f', ms)
end

-- State

local function epoch_of(s) return match(s.epochs, '(%d+):%d+%-%d+$') end

-- Read the state, with the value of another field of the hash; nil and a reply if the state is missing or damaged.
local function load(other)
  local f = call('HMGET', state_key, 'topic', 'next', 'start', 'length', 'entries', 'bytes', 'trimmed', 'largest',
    'skipped', 'epochs', 'checked', 'chunk.bytes', 'chunk.opened', 'chunk.appended', 'chunk.max_timestamp',
    'stretch.bytes', 'stretch.max_timestamp', 'earliest', 'first', 'server', 'visible', 'unstable', other or 'topic')
  if not f[1] then return nil, {'nostate'} end
  if f[1] ~= topic_id then return nil, {'othertopic'} end
  local s = {
    start = f[3], length = tonumber(f[4]), entries = tonumber(f[5]), bytes = tonumber(f[6]),
    trimmed = tonumber(f[7]), largest = tonumber(f[8]), skipped = tonumber(f[9]), epochs = f[10],
    checked = tonumber(f[11]) or 0, chunk_bytes = tonumber(f[12]), chunk_opened = tonumber(f[13]),
    chunk_appended = tonumber(f[14]), chunk_max = f[15], stretch_bytes = tonumber(f[16]), stretch_max = f[17],
    earliest = f[18] or f[3], first = f[19] or '', server = f[20], visible = f[21], unstable = f[22] or '', other = f[23],
    dirty = false,
  }
  s.ms, s.seq = pair_of(f[2] or '')
  -- Another client may have written to the hash. A missing number would fail a script in the middle of its writes.
  local is_whole = s.ms and s.length and s.entries and s.bytes and s.trimmed and s.largest and s.skipped
    and s.chunk_bytes and s.chunk_opened and s.chunk_appended and s.stretch_bytes
    and pair_of(s.start or '') and pair_of(s.earliest or '') and match(s.epochs or '', '^%d+:%d+%-%d+') and epoch_of(s)
    and tonumber(s.chunk_max) and tonumber(s.stretch_max)
  if not is_whole then return nil, {'damaged'} end
  -- While min.insync.replicas was 1, or under an earlier version, consumers could read all records.
  if is_replicated and not pair_of(s.visible or '') then
    s.visible, s.visible_stable, s.has_other_visible, s.dirty = f[2], s.unstable, true, true
  elseif not is_replicated and s.visible then
    s.visible, s.has_other_visible, s.dirty = nil, true, true
  end
  return s
end

-- The lowest producer id that is assigned at that time; the rule and its numbers are those of producer_state.py.
local function producer_id_at(ms) return format('%.0f', math.max(0, math.floor((ms - 1577836800000) / 64)) * 524288) end

-- From now on, treat unknown producers whose ids were assigned before now as possibly forgotten. Without the field, all
-- unknown producers count as possibly forgotten.
local function forget_producers()
  if call('HGET', state_key, 'producers.from') then
    call('HSET', state_key, 'producers.from', producer_id_at(now))
  end
end

local function save(s, ...)
  call('HSET', state_key, 'next', id_of(s.ms, s.seq), 'start', s.start, 'length', s.length, 'entries', s.entries,
    'bytes', s.bytes, 'trimmed', s.trimmed, 'largest', s.largest, 'skipped', s.skipped, 'epochs', s.epochs,
    'checked', s.checked, 'chunk.bytes', s.chunk_bytes, 'chunk.opened', s.chunk_opened, 'chunk.appended', s.chunk_appended,
    'chunk.max_timestamp', s.chunk_max, 'stretch.bytes', s.stretch_bytes, 'stretch.max_timestamp', s.stretch_max,
    ...)
  if s.has_moved then call('HSET', state_key, 'earliest', s.earliest, 'first', s.first) end
  if s.has_lost_producers then forget_producers() end
  if s.has_other_visible and s.visible then
    call('HSET', state_key, 'visible', s.visible, 'visible.stable', s.visible_stable)
  end
  if s.has_other_visible and not s.visible then call('HDEL', state_key, 'visible', 'visible.stable') end
  if s.has_other_unstable then call('HSET', state_key, 'unstable', s.unstable) end
  s.dirty, s.has_moved, s.has_other_visible, s.has_other_unstable = false, false, false, false
end

-- The index

local function close_chunk(s, last_id)
  -- Another client may have changed the index. The records are added by now, so an error here is ignored.
  pcall('XADD', index, last_id, 'max_timestamp', s.chunk_max, 'appended', s.chunk_appended,
    'bytes', s.bytes, 'entries', s.entries)
  if is_later(s.chunk_max, s.stretch_max) then s.stretch_max = s.chunk_max end
  if s.bytes - s.stretch_bytes >= STRETCH_BYTES then
    pcall('XADD', summary, last_id, 'max_timestamp', s.stretch_max, 'appended', s.chunk_appended,
      'bytes', s.bytes, 'entries', s.entries)
    s.stretch_bytes, s.stretch_max = s.bytes, NO_TIMESTAMP
  end
  s.chunk_opened, s.chunk_max, s.checked = 0, NO_TIMESTAMP, 0
end

-- Count entries as part of the open chunk; return true if the chunk should be closed after the last of them.
local function cover(s, entries, bytes, max_timestamp)
  if s.chunk_opened == 0 then s.chunk_opened, s.chunk_bytes, s.chunk_max = now, s.bytes, max_timestamp end
  if is_later(max_timestamp, s.chunk_max) then s.chunk_max = max_timestamp end
  s.chunk_appended = now
  s.entries = s.entries + entries
  s.bytes = s.bytes + bytes
  s.dirty = true
  return s.bytes - s.chunk_bytes >= CHUNK_BYTES or now - s.chunk_opened >= CHUNK_MS
end

-- The log start
--
-- `start` is the bound that retention and DeleteRecords move: a read below it is out of range. `earliest` is where the
-- log began when the state was created, or begins since other clients trimmed it. The log start that clients receive is
-- the later of both. Compaction moves neither.

local function log_start(s)
  local ms, seq = pair_of(s.start)
  return is_before(ms, seq, pair_of(s.earliest)) and s.earliest or s.start
end

-- The ID of the first record of an entry. The ID of a batch is that of its last record.
local function first_record_id(entry)
  local ms, seq = pair_of(entry[1])
  if ms > highest_ms then return nil end
  if seq > mask then return id_of(ms + 1, 0) end
  local batch = entry[2][1] == '$batch' and entry[2][2]
  if layout ~= 'batch' or not batch or #batch < 61 or string.byte(batch, 17) ~= 2 then return entry[1] end
  local a, b, c, d = string.byte(batch, 24, 27)
  if a >= 128 then return entry[1] end
  local rest = seq - (((a * 256 + b) * 256 + c) * 256 + d)
  ms, seq = ms + math.floor(rest / (mask + 1)), rest % (mask + 1)
  if ms < (mask == 0 and 1 or 0) then return entry[1] end
  return id_of(ms, seq)
end

local function first_entry() return call('XRANGE', stream, '-', '+', 'COUNT', 1)[1] end

local function note_first(s)
  local first = first_entry()
  s.first, s.has_moved = first and first[1] or '', true
end

-- The first ID of the oldest open transaction, or ""
local function first_open()
  local entry = call('XRANGE', open_key, '-', '+', 'COUNT', 1)[1]
  return entry and entry[1] or ''
end

-- Trimming

local function drop_before(s, id)
  local dropped = call('XTRIM', stream, 'MINID', '=', id)
  if dropped > 0 then note_first(s) end
  s.length = s.length - dropped
  call('XTRIM', index, 'MINID', '=', id)
  call('XTRIM', summary, 'MINID', '=', id)
  pcall('XTRIM', aborted_key, 'MINID', '=', id)
  s.dirty = true
end

local function is_expired(s, max_timestamp, appended, bytes)
  local newest = tonumber(max_timestamp)
  if newest < 0 then newest = appended end
  return retention_ms >= 0 and now - newest > retention_ms and now - appended >= keep_ms
    or retention_bytes >= 0 and s.bytes - bytes >= retention_bytes
end

local function is_id_before(id, other)
  local ms, seq = pair_of(id)
  return is_before(ms, seq, pair_of(other))
end

-- An index entry that another client added has no valid numbers; it expires with the next valid entry.
local function is_chunk_expired(s, chunk)
  local f = chunk[2]
  local newest, appended, bytes = tonumber(f[2]), tonumber(f[4]), tonumber(f[6])
  return not (newest and appended and bytes) or is_expired(s, newest, appended, bytes)
end

-- Drop expired leading chunks, `limit` at most, and only those before the ID `up_to` if that is given. Return true if
-- there may be more. The index is searched after a chunk was closed, and otherwise once a second.
local function expire(s, limit, up_to)
  if retention_ms < 0 and retention_bytes < 0 then return false end
  if s.chunk_opened > 0 and is_expired(s, s.chunk_max, s.chunk_appended, s.bytes) then
    close_chunk(s, id_of(before(s.ms, s.seq)))
    s.dirty = true
  end
  if now - s.checked < 1000 then return false end
  s.checked = now
  local first = call('XRANGE', index, '-', '+', 'COUNT', 1)[1]
  if not first or not is_chunk_expired(s, first) then return false end

  local last, count = nil, 0
  for _, chunk in ipairs(call('XRANGE', index, '-', '+', 'COUNT', limit)) do
    if not is_chunk_expired(s, chunk) then break end
    if up_to and not is_id_before(chunk[1], up_to) then break end
    last, count = chunk, count + 1
  end
  if not last then return false end
  local ms, seq = after(pair_of(last[1]))
  drop_before(s, id_of(ms, seq))
  s.trimmed = tonumber(last[2][6]) or s.trimmed
  local start_ms, start_seq = pair_of(s.start)
  if is_before(start_ms, start_seq, ms, seq) then s.start = id_of(ms, seq) end
  if count == limit then s.checked = 0 end
  return count == limit
end

-- Changes that other clients made to the stream

-- Another client has removed entries (XDEL, XTRIM, DEL), or added entries with IDs below the end. Drop the index
-- entries of chunks before the first remaining entry. The log start follows if the first entry is gone, but reads below
-- it stay possible.
local function recount(s)
  local length = call('XLEN', stream)
  if length == s.length then return end
  local first = first_entry()
  if not first then
    s.earliest = id_of(s.ms, s.seq)
  elseif s.first ~= '' and is_id_before(s.first, first[1]) then
    s.earliest = first_record_id(first) or s.earliest
  end
  s.first, s.has_moved = first and first[1] or '', true
  local limit = first and '(' .. first[1] or '+'
  local chunk = call('XREVRANGE', index, limit, '-', 'COUNT', 1)[1]
  if chunk then s.trimmed = math.max(s.trimmed, tonumber(chunk[2][6]) or 0) end
  if first then
    call('XTRIM', index, 'MINID', '=', first[1])
    call('XTRIM', summary, 'MINID', '=', first[1])
    pcall('XTRIM', aborted_key, 'MINID', '=', first[1])
  else
    call('XTRIM', index, 'MAXLEN', '=', 0)
    call('XTRIM', summary, 'MAXLEN', '=', 0)
    pcall('XTRIM', aborted_key, 'MAXLEN', '=', 0)
    s.trimmed, s.chunk_opened, s.chunk_max = s.bytes, 0, NO_TIMESTAMP
  end
  call('HDEL', state_key, 'compaction') -- a running compaction would restore removed entries
  s.skipped = s.skipped + math.max(length - s.length, 0) -- IDs between the last entry and the end may have no offset
  s.length, s.dirty = length, true
end

-- Adopt about `limit` entries that other clients added after the end; return true if there are no more.
local function adopt(s, limit)
  if s.length == 0 and call('HGET', state_key, 'rebuild.end') then return false end
  -- If nothing was ever stored and an entry has an ID below the log's beginning, the log begins at that entry.
  local lowest = s.length == 0 and s.entries == 0 and first_entry()
  local id = lowest and first_record_id(lowest)
  if id and is_id_before(id, id_of(s.ms, s.seq)) then
    s.ms, s.seq = pair_of(id)
    s.earliest, s.has_moved = id, true
  end
  local from, seen, size = id_of(s.ms, s.seq), 0, 0
  while seen < limit and size < 1048576 do
    local entries = call('XRANGE', stream, from, '+', 'COUNT', 16)
    for _, entry in ipairs(entries) do
      local ms, seq = pair_of(entry[1])
      if ms > highest_ms then
        recount(s)
        return true
      end
      local bytes, timestamp = measure(entry, ms)
      if seq > mask then s.skipped, timestamp = s.skipped + 1, NO_TIMESTAMP end
      if cover(s, 1, bytes, timestamp) then close_chunk(s, entry[1]) end
      if s.length == 0 then s.first, s.has_moved = entry[1], true end
      s.ms, s.seq = after(ms, seq)
      s.length, s.largest = s.length + 1, math.max(s.largest, bytes)
      seen, size, from = seen + 1, size + bytes, '(' .. entry[1]
    end
    if #entries < 16 then
      recount(s)
      return true
    end
  end
  return false
end

-- Return the leader epochs with another one that begins at the end, without those that have no records. The new
-- epoch is above the one that the caller has seen, and not below `lowest`.
local function with_new_epoch(s, seen, lowest)
  local epochs, next_id, last = {}, id_of(s.ms, s.seq), nil
  for epoch, first in string.gmatch(s.epochs, '(%d+):(%d+%-%d+)') do
    if not is_id_before(s.start, first) then epochs = {} end -- the records of earlier epochs were removed
    if first ~= next_id then epochs[#epochs + 1] = epoch .. ':' .. first end
    last = epoch
  end
  epochs[#epochs + 1] = format('%d:%s', math.max(tonumber(last) + 1, (tonumber(seen) or 0) + 1, lowest), next_id)
  return table.concat(epochs, ' ')
end

-- Redis may have come back with an older state: the caller has seen acknowledged records of this epoch that are gone, or
-- a later epoch, or the epoch began in another server process. Later records then belong to a new leader epoch, so that clients detect the
-- truncation. Without a loss they find that nothing was truncated. The new epoch begins where the log was cut, and its
-- records follow the lost ones, whose offsets clients may have read. With min.insync.replicas above 1, no producer has
-- an acknowledgement of a lost record: it sends all of them again, and no other batch may be before them.
-- Partitions begin the same epoch on the same server process, which is above all epochs that clients know. Return false if
-- ARGV does not have that epoch.
local function notice_loss(s)
  local run_id, begins, newest, epoch, id = match(ARGV[8], '^(%S*) (%S+) (%d+) %d (%d*) ?(%S*)$')
  s.is_short = id ~= '' and is_before(s.ms, s.seq, pair_of(id))
  s.has_lost_producers = s.is_short and not is_replicated
  local has_lost = s.is_short and epoch == epoch_of(s) or epoch ~= '' and tonumber(epoch) > tonumber(epoch_of(s))
  local is_elsewhere = run_id ~= '' and run_id ~= s.server
  local epochs = s.epochs
  if is_elsewhere and s.server then
    if begins == '-' then
      s.needs_epoch = true
      return false
    end
    if begins == '0' then return true end
    epochs = with_new_epoch(s, epoch, tonumber(begins))
  elseif has_lost then
    epochs = with_new_epoch(s, epoch, tonumber(newest) + 1)
  end
  if is_elsewhere then
    local reply = pcall('HSET', state_key, 'server', run_id, 'epochs', epochs)
    if type(reply) == 'table' and reply.err then return true end -- Redis is full: a later call begins the epoch
  end
  s.epochs, s.dirty = epochs, s.dirty or s.is_short or has_lost
  if s.is_short then s.ms, s.seq = pair_of(id) end
  return true
end

-- Bring the state up to date with the stream; return false if that takes more than one call.
local function settle(s, limit)
  local is_settled = call('XLEN', stream) == s.length
    and #call('XRANGE', stream, id_of(s.ms, s.seq), '+', 'COUNT', 1) == 0
    or adopt(s, limit)
  return is_settled and notice_loss(s)
end
