-- Compare and set a document. If a call is repeated with its token because its answer was lost, it gets the answer of
-- the first call.
--
-- KEYS    the document        ARGV    the expected version (0: absent), a token, "1" to delete, the new value,
--                                     the `run_id` of the server that the save depends on, or ""
--
-- Answers the new version (0 after deletion), or if the stored version or the server differs, the stored version and
-- value.

-- Return true if this server has another `run_id`. A user without the right to INFO knows none.
local function is_elsewhere(expected)
  if expected == '' then return false end
  local info = redis.pcall('INFO', 'server')
  local run_id = type(info) == 'string' and info:match('run_id:(%x+)')
  return run_id and run_id ~= expected
end

local stored = redis.call('HMGET', KEYS[1], 'version', 'token')
local version = tonumber(stored[1] or '0')
if stored[2] == ARGV[2] then return version end
if version ~= tonumber(ARGV[1]) or is_elsewhere(ARGV[5]) then
  return { stored[1] or '0', redis.call('HGET', KEYS[1], 'value') or '' }
end
if ARGV[3] == '1' then
  redis.call('UNLINK', KEYS[1])
  return 0
end
redis.call('HSET', KEYS[1], 'version', version + 1, 'token', ARGV[2], 'value', ARGV[4])
return version + 1
