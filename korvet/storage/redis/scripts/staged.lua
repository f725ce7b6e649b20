-- The shared part of scripts that change what transactions have staged in a group's hash (`stage_offsets.lua`).

-- Call `change` with the offsets of each producer in `open`, and store them if it returns true. Damaged offsets, which
-- another client has written, are left alone.
local function change_staged(group, open, change)
  for producer in string.gmatch(open or '', '%d+') do
    local field = 'staged:' .. producer
    local is_json, staged = pcall(cjson.decode, redis.call('HGET', group, field) or '')
    local is_readable = is_json and type(staged) == 'table' and type(staged.offsets) == 'table'
    if is_readable and change(staged.offsets) then redis.call('HSET', group, field, cjson.encode(staged)) end
  end
end
