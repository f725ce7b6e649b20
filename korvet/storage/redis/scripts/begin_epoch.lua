-- Return the leader epoch that partitions begin on a server process; the first call about a process raises the newest one.
--
-- KEYS    the hash of leader epochs
-- ARGV    1 the server's `run_id`
--         2 the newest leader epoch that the caller knows: Redis may have come back with an older state
--
-- Answers {epoch of the process, the newest epoch}; the first is 0 if Redis is full.

local MOST_PROCESSES = 256

local call = redis.call
local stored = call('HMGET', KEYS[1], ARGV[1], 'newest')
local newest = math.max(tonumber(stored[2] or '0'), tonumber(ARGV[2]))
local epoch = tonumber(stored[1] or '')
if not epoch then
  -- Without its entry, a process that returns begins a later epoch than necessary.
  if #call('HGETALL', KEYS[1]) > 2 * MOST_PROCESSES then call('UNLINK', KEYS[1]) end
  newest = newest + 1
  epoch = newest
  local reply = redis.pcall('HSET', KEYS[1], ARGV[1], string.format('%d', epoch))
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'OOM', 1, true) then return {0, newest - 1} end
    return reply
  end
  call('HSET', KEYS[1], 'newest', string.format('%d', newest))
end
return {epoch, newest}
