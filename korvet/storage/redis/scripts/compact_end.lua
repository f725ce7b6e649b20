-- Remove what a run of compaction left that did not come to its end.
--
-- KEYS    as of compact_begin
-- ARGV    9 the run's token, or "" for one whose token is gone; nothing is done where another one has begun
--
-- Answers {'ok'}; or {'nostate'}, {'othertopic'}.

local s, refusal = load('compaction')
if not s then return refusal end
if not s.other or s.other == ARGV[9] then
  call('UNLINK', KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10])
  call('HDEL', state_key, 'compaction')
end
return {'ok'}
