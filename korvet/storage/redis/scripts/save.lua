-- Compare and set a document. If a call is repeated with its token because its answer was lost, it gets the answer of
-- the first call.
--
-- KEYS    the document        ARGV    the expected version (0: absent), a token, "1" to delete, the new value,
--                                     the `run_id` of the server that the save depends on, or "",
--                                     the number of parts to remove (-1: all), these parts,
--                                     then name and value of each part to write
--
-- The field `parts` exists if the document may have parts, so that the others need not be searched for them.
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

local stored = redis.call('HMGET', KEYS[1], 'version', 'token', 'parts')
local version = tonumber(stored[1] or '0')
if stored[2] == ARGV[2] then return version end
if version ~= tonumber(ARGV[1]) or is_elsewhere(ARGV[5]) then
  return { stored[1] or '0', redis.call('HGET', KEYS[1], 'value') or '' }
end
if ARGV[3] == '1' then
  redis.call('UNLINK', KEYS[1])
  return 0
end
local removed = tonumber(ARGV[6])
if removed < 0 then
  removed = 0
  if stored[3] then
    local fields = redis.call('HGETALL', KEYS[1])
    for i = 1, #fields, 2 do
      if fields[i]:sub(1, 5) == 'part:' then redis.call('HDEL', KEYS[1], fields[i]) end
    end
    redis.call('HDEL', KEYS[1], 'parts')
  end
end
for i = 7, 6 + removed do redis.call('HDEL', KEYS[1], ARGV[i]) end
if #ARGV > 6 + removed then
  if not stored[3] then redis.call('HSET', KEYS[1], 'parts', '1') end
  for i = 7 + removed, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', KEYS[1], 'version', version + 1, 'token', ARGV[2], 'value', ARGV[4])
return version + 1
