-- Put entries into the new stream.
--
-- KEYS    as for compact_begin
-- ARGV    9 the run's token, 10 the step's number: a call that repeats the number changes nothing
--        11 "list": retained entries of the part that is compacted: for each its ID, the number of its fields and
--           values, and these; 0 and none if the entry is copied unchanged
--           "tail": 12 the first ID (as XRANGE takes it), 13 and 14 the largest number of entries and bytes; at least
--           one entry is copied, and all of them unchanged
--
-- Answers {'ok', first ID of the remaining tail, '1' if there is more of it}; {'large', ID}: an entry with more fields
-- than a script can copy; {'superseded'}: another run has begun, or another client has removed entries; or {'nostate'},
-- {'othertopic'}.

local MOST_FIELDS = 7000 -- `unpack` fails near 8,000
local READ_AT_ONCE = 100

local s, refusal = load('compaction')
if not s then return refusal end
if s.other ~= ARGV[9] then return {'superseded'} end

-- The append time of an entry, from the entry of the old index that covers it.
local piece_ms, piece_seq, piece_appended = -1, 0, 0
local function appended_at(ms, seq)
  if is_before(piece_ms, piece_seq, ms, seq) then
    local piece = call('XRANGE', KEYS[3], id_of(ms, seq), '+', 'COUNT', 1)[1]
    if piece then
      piece_ms, piece_seq = pair_of(piece[1])
      piece_appended = tonumber(piece[2][4]) or 1
    else
      piece_ms, piece_appended = math.huge, s.chunk_appended
    end
  end
  return math.max(piece_appended, 1)
end

stream, state_key, index, summary = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local new = load('step')
if not new then return {'superseded'} end
if tonumber(new.other) >= tonumber(ARGV[10]) then return {'ok', call('HGET', state_key, 'from')} end

local function add(id, fields)
  if #fields > MOST_FIELDS then return false end
  call('XADD', stream, id, unpack(fields))
  local ms, seq = pair_of(id)
  local bytes, timestamp = measure({id, fields}, ms)
  if seq > mask then timestamp = NO_TIMESTAMP end
  now = appended_at(ms, seq)
  if cover(new, 1, bytes, timestamp) then close_chunk(new, id) end
  new.ms, new.seq = after(ms, seq)
  new.length, new.largest = new.length + 1, math.max(new.largest, bytes)
  return true
end

local from, has_more = '-', ''
if ARGV[11] == 'list' then
  local at = 12
  while at <= #ARGV do
    local id, count, fields = ARGV[at], tonumber(ARGV[at + 1]), nil
    if count > 0 then
      fields = {unpack(ARGV, at + 2, at + 1 + count)}
    else
      local entry = call('XRANGE', KEYS[1], id, id)[1]
      fields = entry and entry[2] -- it may have been trimmed meanwhile
    end
    if fields and not add(id, fields) then return {'large', id} end
    at = at + 2 + count
  end
  save(new, 'step', ARGV[10], 'clean.bytes', new.bytes)
else
  from = ARGV[12]
  local entries_end, bytes_end = new.length + tonumber(ARGV[13]), new.bytes + tonumber(ARGV[14])
  local entries
  repeat
    entries = call('XRANGE', KEYS[1], from, '+', 'COUNT', READ_AT_ONCE)
    for _, entry in ipairs(entries) do
      if not add(entry[1], entry[2]) then return {'large', entry[1]} end
      from = '(' .. entry[1]
      if new.bytes > bytes_end then break end
    end
    if new.length >= entries_end or new.bytes > bytes_end then has_more = '1' end
  until #entries < READ_AT_ONCE or has_more == '1'
  save(new, 'step', ARGV[10], 'from', from)
end
return {'ok', from, has_more}
