-- Set the last-delivered ID of the stream's consumer group to the committed offset of the Kafka group of that name.
--
-- KEYS    6 the groups that a running compaction has to move: the last-delivered ID of each
--         7 $shares: a delayed commit does not move a share group
-- ARGV    9 group
--        10 ID of the offset before the committed one; 0-0 if nothing is consumed
--
-- Answers {'ok'}; {'more'}: repeat the call, entries are still pending; or {'rescan'}, {'nostate'}, {'othertopic'}.

local s, refusal = load('compaction')
if not s then return refusal end
if call('HGET', KEYS[7], 'group:' .. ARGV[9]) then return {'ok'} end
if not settle(s, 1000) then
  save(s)
  return {'rescan'}
end
if s.dirty then save(s) end

local group, consumed = ARGV[9], ARGV[10]
local committed_ms, committed_seq = after(pair_of(consumed))
local below_committed = '(' .. id_of(committed_ms, committed_seq)

-- The ID before the committed offset need not be an entry's: the offset may follow a gap, or lie inside a batch.
local last_entry = call('XREVRANGE', stream, below_committed, '-', 'COUNT', 1)[1]
local id = last_entry and last_entry[1] or consumed

-- Return the number of entries ever added up to and including `id`. Redis computes lag from that number, and cannot
-- determine it by itself in the middle of a stream. Return nil if counting would take long.
local function count_entries()
  if not is_before(committed_ms, committed_seq, s.ms, s.seq) then return s.entries end
  local chunk = call('XREVRANGE', index, id, '-', 'COUNT', 1)[1]
  local from = chunk and '(' .. chunk[1] or '-'
  local before_chunk = chunk and tonumber(chunk[2][8]) or s.entries - s.length
  local behind = #call('XRANGE', stream, from, id, 'COUNT', 5000)
  return behind < 5000 and before_chunk + behind or nil
end

local command = {'SETID', stream, group, id}
local count = (redis.REDIS_VERSION_NUM or 0) >= 0x070000 and count_entries() or nil
if count then
  command[5], command[6] = 'ENTRIESREAD', format('%.0f', count)
end

local reply = pcall('XGROUP', unpack(command))
local is_new = type(reply) == 'table' and reply.err
  and (string.find(reply.err, 'NOGROUP', 1, true) or string.find(reply.err, 'requires the key', 1, true))
if is_new then
  command[1] = 'CREATE'
  if count then command[7] = 'MKSTREAM' else command[5] = 'MKSTREAM' end
  reply = pcall('XGROUP', unpack(command))
end
if type(reply) == 'table' and reply.err then return reply end
if s.other then call('HSET', KEYS[6], group, id) end
if is_new then return {'ok'} end

local pending = call('XPENDING', stream, group, '-', below_committed, 1000)
if #pending == 0 then return {'ok'} end
local ids = {}
for i, entry in ipairs(pending) do ids[i] = entry[1] end
call('XACK', stream, group, unpack(ids))
return {#pending == 1000 and 'more' or 'ok'}
