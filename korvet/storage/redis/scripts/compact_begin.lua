-- Begin to rebuild a partition's log, in a stream beside the old one.
--
-- KEYS    6 the new stream, 7 its $state, 8 its $index, 9 its $summary, 10 a temporary key for the old stream,
--         11 the groups that commits have moved since they were copied
-- ARGV    9 the run's token: the steps of any other run are refused from now on
--
-- Answers {'ok'}; or {'rescan'}, {'nostate'}, {'othertopic'}.

save(s, 'compaction', ARGV[9])
call('UNLINK', KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11])

-- The new state has the fields of a partition's state, so that `cover` and `close_chunk` work on it.
local new = {
  ms = 0, seq = 0, start = '0-0', length = 0, entries = 0, bytes = 0, trimmed = 0, largest = 0, skipped = 0,
  epochs = '0:0-0', checked = 0, chunk_bytes = 0, chunk_opened = 0, chunk_appended = 0, chunk_max = NO_TIMESTAMP,
  stretch_bytes = 0, stretch_max = NO_TIMESTAMP,
}
state_key = KEYS[7]
save(new, 'topic', topic_id, 'step', 0, 'from', '-', 'clean.bytes', 0)

-- Try RENAME: if the Redis user lacks the permission, fail here and not between two renames.
call('RENAME', KEYS[7], KEYS[10])
call('RENAME', KEYS[10], KEYS[7])
return {'ok'}
