-- Create consumer groups on the new stream, or set their last-delivered IDs; they are those of the old stream.
--
-- KEYS    as for compact_begin
-- ARGV    9 the run's token; then for each group, in the order of IDs, its name and its last-delivered ID, or "" if the
--           old stream has it no more
--
-- Answers {'ok', number of groups}: fewer than given if counting entries takes long, at least one; {'superseded'} as
-- compact_copy; or {'nostate'}, {'othertopic'}.

local MOST_COUNTED, NO_LIMIT = 2000, 1e9

local s, refusal = load('compaction')
if not s then return refusal end
if s.other ~= ARGV[9] then return {'superseded'} end

stream, state_key, index, summary = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local new = load()
if not new then return {'superseded'} end

local done = 0
for at = 10, #ARGV, 2 do
  local name, id = ARGV[at], ARGV[at + 1]
  if id == '' then
    call('XGROUP', 'DESTROY', stream, name)
  else
    local count = entries_up_to(new, id, done > 0 and MOST_COUNTED or NO_LIMIT)
    if has_counts and not count then break end
    put_group(name, id, count)
  end
  done = done + 1
end
return {'ok', format('%d', done)}
