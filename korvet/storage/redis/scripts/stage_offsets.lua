-- Stage a group's offsets in a transaction, fenced by the group's generation and its coordinator's epoch.
--
-- KEYS    the group's hash
-- ARGV    1 generation, or -1; 2 epoch of the coordinator, or -1; 3 producer id, 4 its epoch, 5 the transaction's number;
--           then for each offset: topic and partition, offset and leader epoch, topic id and metadata
--
-- The hash lists the producers with staged offsets in `open`, and what one has staged in `staged:<producer id>`. `ended`
-- has the last transactions, each as <producer id>:<number>:<time>, so that offsets that arrive late are refused.
--
-- Answers {'ok'}. Otherwise nothing is stored: {'fenced', generation} and {'replaced', epoch} as a commit; {'ended'}, the
-- transaction has ended; {'behind', number}, that earlier transaction has not; {'stale', epoch}, the producer has that one.

local group, producer = KEYS[1], ARGV[3]
local given, epoch = tonumber(ARGV[1]), tonumber(ARGV[2])
local producer_epoch, number = tonumber(ARGV[4]), tonumber(ARGV[5])
local stored, latest, open, ended, json =
  unpack(redis.call('HMGET', group, 'generation', 'coordinator', 'open', 'ended', 'staged:' .. producer))
if epoch >= 0 and latest and tonumber(latest) > epoch then return {'replaced', latest} end
if given >= 0 and stored and tonumber(stored) > given then return {'fenced', stored} end

for id, last in string.gmatch(ended or '', '(%d+):(%d+):%d+') do
  if id == producer and tonumber(last) >= number then return {'ended'} end
end
local staged = {transaction = number, epoch = producer_epoch, offsets = {}}
if json then
  staged = cjson.decode(json)
  if staged.transaction > number then return {'ended'} end
  if staged.transaction < number then return {'behind', tostring(staged.transaction)} end
  if staged.epoch > producer_epoch then return {'stale', tostring(staged.epoch)} end
end

local clock = redis.call('TIME')
local now = string.format(' %.0f ', clock[1] * 1000 + math.floor(clock[2] / 1000))
for i = 6, #ARGV, 3 do staged.offsets[ARGV[i]] = ARGV[i + 1] .. now .. ARGV[i + 2] end
local values = {'staged:' .. producer, cjson.encode(staged)}
if not json then
  values[3], values[4] = 'open', open and open .. ' ' .. producer or producer
end
if given >= 0 then
  values[#values + 1], values[#values + 2] = 'generation', ARGV[1]
end
redis.call('HSET', group, unpack(values))
return {'ok'}
