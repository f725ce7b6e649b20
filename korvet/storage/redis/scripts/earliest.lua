-- Find the log start, and the first readable record for its timestamp.
--
-- ARGV    9 search after this ID, or "" for the log start
--
-- Answers {'ok', log start, leader epochs, ID, timestamp}; in the batch layout the batch's 61-byte header follows, and
-- the timestamp is "" unless it is the log append time; {'empty', log start, leader epochs};
-- {'skipped', …, ID}: no entry up to that ID has an offset, so continue after it; or {'rescan'}, {'nostate'},
-- {'othertopic'}.

if s.dirty then save(s) end

local from = ARGV[9] == '' and s.start or ('(' .. ARGV[9])
local begin = log_start(s)
for _ = 1, 1000 do
  local entry = call('XRANGE', stream, from, '+', 'COUNT', 1)[1]
  if not entry then return {'empty', begin, s.epochs} end
  local ms, seq = pair_of(entry[1])
  if ms > highest_ms then return {'empty', begin, s.epochs} end
  if seq <= mask then
    local fields = entry[2]
    if layout == 'batch' and fields[1] == '$batch' and #fields[2] >= 61 and string.byte(fields[2], 17) == 2 then
      local time = fields[3] == '$time' and is_timestamp(fields[4]) and fields[4] or ''
      return {'ok', begin, s.epochs, entry[1], time, string.sub(fields[2], 1, 61)}
    end
    local _, timestamp = measure(entry, ms)
    return {'ok', begin, s.epochs, entry[1], timestamp}
  end
  from = '(' .. entry[1]
end
return {'skipped', begin, s.epochs, string.sub(from, 2)}
