-- Acknowledge records that a member of a share group has acquired: all of them or none.
--
-- ARGV   11 number of the call, which is the same if it is repeated
--        12 lock (ms), 13 limit of deliveries; then for each batch its first and last ID, its kind (0 gap, 1 accept,
--           2 release, 3 reject, 4 renew) and its number of offsets
--
-- Answers {'ok'}; {'state', ID}: the member has not acquired the record; {'beyond'}: records were not delivered yet;
-- {'closed'}: the group has not begun; or {'rescan'}, {'nostate'}, {'othertopic'}.

if not is_open() then return {'closed'} end
local acknowledged_field = field_of('acknowledged', member)
if call('HGET', shares, acknowledged_field) == ARGV[11] then return {'ok'} end

local GAP, RELEASE, RENEW = 0, 2, 4
local MOST = 10000 -- records in flight
local lock, limit = tonumber(ARGV[12]), tonumber(ARGV[13])

local last_id, start
local function look_up()
  if start then return end
  last_id = last_delivered()
  local lowest = call('XPENDING', stream, group, '-', '+', 1)[1]
  start = lowest and lowest[1] or id_of(after(pair_of(last_id)))
end

-- Return the first entry that is not pending, of those that are not below the start offset.
local function first_other(first, last, pending)
  local is_pending = {}
  for _, each in ipairs(pending) do is_pending[each[1]] = true end
  local from, found = is_id_before(first, start) and start or first, nil
  if is_id_before(last, from) then return nil end
  repeat
    found = call('XRANGE', stream, from, last, 'COUNT', 100)
    for _, entry in ipairs(found) do
      if not is_pending[entry[1]] then return entry[1] end
      from = '(' .. entry[1]
    end
  until #found < 100
end

local released, renewed, finished = {}, {}, {}
for at = 14, #ARGV, 4 do
  local first, last, kind, offsets = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local pending = call('XPENDING', stream, group, first, last, MOST)
  if #pending < offsets then
    look_up()
    if is_id_before(last_id, last) then return {'beyond'} end
  end
  for _, each in ipairs(pending) do
    if each[2] == member and each[3] < lock then
      if kind == RELEASE then
        released[#released + 1] = each
      else
        local ids = kind == RENEW and renewed or finished
        ids[#ids + 1] = each[1]
      end
    elseif kind ~= GAP then
      return {'state', each[1]}
    end
  end
  local other = #pending < offsets and kind ~= GAP and first_other(first, last, pending)
  if other then return {'state', other} end
end

finish(finished)
give_back(released, limit)
with_ids({'XCLAIM', stream, group, member, 0}, renewed, {'IDLE', 0, 'JUSTID'})
if #finished + #released + #renewed > 0 then call('HSET', shares, acknowledged_field, ARGV[11]) end
return {'ok'}
