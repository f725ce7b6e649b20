-- Shared by the scripts that create consumer groups on the new stream; stands after partition.lua.

local has_counts = (redis.REDIS_VERSION_NUM or 0) >= 0x070000 -- there XCLAIM also skips entries that do not exist
local counted_id, counted, entries_read = '0-0', 0, 0

-- Return the number of entries ever added to the new stream up to and including `id`, from which Redis computes lag; nil
-- if Redis has no such number, or if all calls together read more than `limit` entries.
local function entries_up_to(new, id, limit)
  if not has_counts then return nil end
  local ms, seq = pair_of(id)
  if not is_before(ms, seq, before(new.ms, new.seq)) then return new.entries end
  if id == counted_id then return counted end
  local piece = call('XREVRANGE', index, id, '-', 'COUNT', 1)[1]
  local from, entries = piece and piece[1] or '0-0', piece and tonumber(piece[2][8]) or new.entries - new.length
  if is_id_before(from, counted_id) and is_id_before(counted_id, id) then from, entries = counted_id, counted end
  local between = #call('XRANGE', stream, '(' .. from, id, 'COUNT', limit + 1)
  entries_read = entries_read + between
  if entries_read > limit then return nil end
  counted_id, counted = id, entries + between
  return counted
end

local function put_group(name, id, count)
  local counts = count and {'ENTRIESREAD', format('%.0f', count)} or {}
  local reply = pcall('XGROUP', 'CREATE', stream, name, id, 'MKSTREAM', unpack(counts))
  if type(reply) == 'table' and reply.err then call('XGROUP', 'SETID', stream, name, id, unpack(counts)) end
end
