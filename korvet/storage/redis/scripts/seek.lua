-- Find the first chunk that can contain a record with at least the given timestamp.
--
-- ARGV    9 the timestamp, or "max" for the largest one in the log
--        10 search after this ID ("0-0": from the beginning)
--
-- Answers {'ok', ID before the chunk, last ID of the chunk (or "+"), log start, the timestamp, leader epochs};
-- {'none'}; or {'rescan'}, {'nostate'}, {'othertopic'}. If another client deleted the chunk's record, or it lies before
-- the log start, the caller requests the next chunk.

if s.dirty then save(s) end

-- Call `look` with each entry after `id` of an index stream, until it returns a value.
local function each(key, id, last, look)
  local from = '(' .. id
  while true do
    local entries = call('XRANGE', key, from, last, 'COUNT', 64)
    for _, entry in ipairs(entries) do
      local found = look(entry)
      if found then return found end
    end
    if #entries < 64 then return nil end
    from = '(' .. entries[64][1]
  end
end

local function largest_timestamp()
  local largest, last_id = NO_TIMESTAMP, '0-0'
  local function look(entry)
    if tonumber(entry[2][2]) and is_later(entry[2][2], largest) then largest = entry[2][2] end
    last_id = entry[1]
  end
  each(summary, '0-0', '+', look)
  each(index, last_id, '+', look)
  if s.chunk_opened > 0 and is_later(s.chunk_max, largest) then largest = s.chunk_max end
  return largest
end

local function first_chunk(timestamp, id)
  local wanted = tonumber(timestamp)
  local function look(entry)
    if (tonumber(entry[2][2]) or wanted) >= wanted then return {id, entry[1]} end
    id = entry[1]
  end
  local found = each(summary, id, '+', function(entry)
    local chunk = (tonumber(entry[2][2]) or wanted) >= wanted and each(index, id, entry[1], look)
    if chunk then return chunk end
    id = entry[1]
  end)
  found = found or each(index, id, '+', look)
  if found then return found end
  if s.chunk_opened > 0 and tonumber(s.chunk_max) >= wanted then return {id, '+'} end
end

local timestamp = ARGV[9]
if timestamp == 'max' then timestamp = largest_timestamp() end
local chunk = timestamp ~= NO_TIMESTAMP and first_chunk(timestamp, ARGV[10])
if not chunk then return {'none'} end
return {'ok', chunk[1], chunk[2], s.start, timestamp, s.epochs}
