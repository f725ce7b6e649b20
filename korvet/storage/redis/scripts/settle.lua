-- Update the state for entries that other clients added or deleted, and for acknowledged records that Redis lost.
--
-- Answers {'ok'}; {'rescan'} if it takes another call; {'epoch'} if a leader epoch begins that the caller does not know;
-- {'nostate'}, {'othertopic'}.

local s, refusal = load('rebuild.end')
if not s then return refusal end
if s.other then
  if not rebuild(2000) then return {'rescan'} end
  s = load()
end
local is_settled = settle(s, 4000)
if s.dirty then save(s) end
if s.needs_epoch then return {'epoch'} end
return {is_settled and 'ok' or 'rescan'}
