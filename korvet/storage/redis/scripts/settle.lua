-- Update the state for entries that other clients added or deleted, and for acknowledged records that Redis lost.
--
-- Answers {'ok'}; {'rescan'} if it takes another call; {'nostate'}, {'othertopic'}.

local s, refusal = load()
if not s then return refusal end
local is_settled = settle(s, 4000)
if s.dirty then save(s) end
return {is_settled and 'ok' or 'rescan'}
