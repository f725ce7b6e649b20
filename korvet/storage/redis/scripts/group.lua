-- Shared by the scripts that write a group's hash; stands before each of them.
--
-- KEYS    the group's hash
-- ARGV    1 writer id (the broker process), 2 number of its connection, rising; 3 … the script's own arguments
--
-- A command that the network delayed can arrive after commands of the connection that replaced its own. The hash
-- therefore stores the last writer, and a call over an older connection of the same process changes nothing.

local group, writer, connection = KEYS[1], ARGV[1], ARGV[2]

local stored_writer = redis.call('HGET', group, 'writer')

local function is_stale()
  local stored, number = string.match(stored_writer or '', '^(%S+) (%d+)$')
  return stored == writer and tonumber(number) > tonumber(connection)
end

local function note_writer()
  local present = writer .. ' ' .. connection
  if stored_writer ~= present then redis.call('HSET', group, 'writer', present) end
end
