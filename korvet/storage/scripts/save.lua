-- Compare and set a document.
--
-- KEYS    the document        ARGV    the version expected (0: absent), "1" to delete, the new value
--
-- Answers the new version (0 after deletion), or -1 when the version is another.

local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if version ~= tonumber(ARGV[1]) then return -1 end
if ARGV[2] == '1' then
  redis.call('UNLINK', KEYS[1])
  return 0
end
redis.call('HSET', KEYS[1], 'version', version + 1, 'value', ARGV[3])
return version + 1
