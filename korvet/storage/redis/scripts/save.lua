-- Compare and set a document. If a call is repeated with its token because its answer was lost, it gets the answer of
-- the first call.
--
-- KEYS    the document        ARGV    the expected version (0: absent), a token, "1" to delete, the new value
--
-- Answers the new version (0 after deletion), or if the stored version differs, the stored version and value.

local stored = redis.call('HMGET', KEYS[1], 'version', 'token')
local version = tonumber(stored[1] or '0')
if stored[2] == ARGV[2] then return version end
if version ~= tonumber(ARGV[1]) then
  return { stored[1] or '0', redis.call('HGET', KEYS[1], 'value') or '' }
end
if ARGV[3] == '1' then
  redis.call('UNLINK', KEYS[1])
  return 0
end
redis.call('HSET', KEYS[1], 'version', version + 1, 'token', ARGV[2], 'value', ARGV[4])
return version + 1
