-- Shared by the scripts of share groups (KIP-932) in the record layout; stands after partition.lua,
-- settled.lua and compact_counts.lua.
--
-- A share partition is the Redis consumer group of the group's name: acquired records are pending under a consumer named
-- like the member, records that are available again under $released, or for longer than the lock. The last-delivered ID
-- is where new records begin. Plain Redis clients may use the same group.
--
-- KEYS    6 $shares: a field "group:GROUP" for each share group, which commits do not move; for each of its members, its
--           last acquisition and its last acknowledgement, which a call that is repeated compares
-- ARGV    9 group
--        10 member, "" if none
--
-- A full Redis refuses HSET, but not after another write in the same script: HSET comes last.

local shares, group, member = KEYS[6], ARGV[9], ARGV[10]
local group_field = 'group:' .. group
local RELEASED = '$released'
local AT_ONCE = 1000

local function field_of(kind, name) return kind .. ':' .. #group .. ':' .. group .. ':' .. name end

local function is_error(reply) return type(reply) == 'table' and reply.err end

local function has_group() return not is_error(pcall('XPENDING', stream, group)) end

-- Another client may have destroyed the Redis group.
local function is_open() return call('HGET', shares, group_field) and has_group() end

-- Call a command with at most AT_ONCE IDs at a time. `before` and `behind` are its arguments around them.
local function with_ids(before, ids, behind)
  for at = 1, #ids, AT_ONCE do
    local command = {unpack(before)}
    for i = at, math.min(at + AT_ONCE - 1, #ids) do command[#command + 1] = ids[i] end
    for _, each in ipairs(behind) do command[#command + 1] = each end
    call(unpack(command))
  end
end

local function finish(ids)
  for at = 1, #ids, AT_ONCE do call('XACK', stream, group, unpack(ids, at, math.min(at + AT_ONCE - 1, #ids))) end
end

-- Release pending entries, which keep their counts. Those that were delivered as often as the limit allows are finished.
local function give_back(pending, limit)
  local finished, released = {}, {}
  for _, each in ipairs(pending) do
    local ids = each[4] >= limit and finished or released
    ids[#ids + 1] = each[1]
  end
  finish(finished)
  with_ids({'XCLAIM', stream, group, RELEASED, 0}, released, {'TIME', 0, 'JUSTID'})
end

-- Call `look` with the pending entries, AT_ONCE at a time: lists of ID, consumer, idle time and count.
local function each_pending(look)
  local from, found = '-', nil
  repeat
    found = call('XPENDING', stream, group, from, '+', AT_ONCE)
    look(found)
    if #found > 0 then from = '(' .. found[#found][1] end
  until #found < AT_ONCE
end

local function last_delivered()
  for _, each in ipairs(call('XINFO', 'GROUPS', stream)) do
    if each[2] == group then return each[8] end
  end
end

if s.dirty then try(save, s) end -- if Redis is full, a later call saves it
