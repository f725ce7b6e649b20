-- Read the state, and settle it with what the stream has; stands between partition.lua and scripts that need both.

local s, refusal = load()
if not s then return refusal end
if not settle(s, 1000) then
  save(s)
  return {'rescan'}
end
