-- Commit or drop the offsets that a producer has staged in a transaction, and remember that the transaction has ended.
--
-- KEYS    the group's hash
-- ARGV    1 producer id, 2 the transaction's number, 3 1 to commit or 0 to drop, 4 how long ended transactions are
--           remembered (ms), 5 how many
--
-- Answers the committed offsets: topic and partition, value, and so on.

local group, producer, number = KEYS[1], ARGV[1], tonumber(ARGV[2])
local open, ended, json = unpack(redis.call('HMGET', group, 'open', 'ended', 'staged:' .. producer))
local committed = {}

local staged = json and cjson.decode(json)
if staged and staged.transaction <= number then
  if ARGV[3] == '1' then
    for name, value in pairs(staged.offsets) do
      if value ~= '' then
        redis.call('HSET', group, 'offset:' .. name, value)
        committed[#committed + 1], committed[#committed + 2] = name, value
      end
    end
  end
  local others = {}
  for id in string.gmatch(open or '', '%d+') do
    if id ~= producer then others[#others + 1] = id end
  end
  redis.call('HDEL', group, 'staged:' .. producer)
  if #others == 0 then
    redis.call('HDEL', group, 'open')
  else
    redis.call('HSET', group, 'open', table.concat(others, ' '))
  end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local kept = {}
for id, last, time in string.gmatch(ended or '', '(%d+):(%d+):(%d+)') do
  if id == producer then
    number = math.max(number, tonumber(last))
  elseif tonumber(time) + tonumber(ARGV[4]) >= now then
    kept[#kept + 1] = id .. ':' .. last .. ':' .. time
  end
end
kept[#kept + 1] = string.format('%s:%.0f:%.0f', producer, number, now)
redis.call('HSET', group, 'ended', table.concat(kept, ' ', math.max(1, #kept - tonumber(ARGV[5]) + 1)))
return committed
