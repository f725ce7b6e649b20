-- Remove the keys of an unfinished run of compaction.
--
-- KEYS    as for compact_begin
-- ARGV    9 the run's token, or "" if the token is gone; nothing is removed if another run has begun
--
-- Answers {'ok'}; or {'nostate'}, {'othertopic'}.

local s, refusal = load('compaction')
if not s then return refusal end
if not s.other or s.other == ARGV[9] then
  call('UNLINK', KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11])
  call('HDEL', state_key, 'compaction')
end
return {'ok'}
