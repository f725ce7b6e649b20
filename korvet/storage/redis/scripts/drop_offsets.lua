-- Remove a group's committed and staged offsets in a topic that was deleted, not those in a later topic of that name.
--
-- KEYS    the group's hash
-- ARGV    1 topic id, 2 prefix of the topic's fields, 3 number of partitions

-- With more partitions than this, one reply with the whole hash costs less than a call for each partition.
local CALLS = 100

local function is_of_topic(stored) return string.match(stored, '^%S+ %S+ %S+ (%S+)') == ARGV[1] end

local function drop(field, stored)
  if stored and is_of_topic(stored) then redis.call('HDEL', KEYS[1], field) end
end

local partitions = tonumber(ARGV[3])
if partitions <= CALLS then
  for i = 0, partitions - 1 do
    drop(ARGV[2] .. i, redis.call('HGET', KEYS[1], ARGV[2] .. i))
  end
else
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, #ARGV[2]) == ARGV[2] then drop(fields[i], fields[i + 1]) end
  end
end

change_staged(KEYS[1], redis.call('HGET', KEYS[1], 'open'), function(offsets)
  local is_changed = false
  for name, stored in pairs(offsets) do
    if is_of_topic(stored) then
      offsets[name], is_changed = nil, true
    end
  end
  return is_changed
end)
