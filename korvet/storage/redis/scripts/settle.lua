-- Bring the state up to what the stream holds: entries added or deleted by others, acknowledged records lost.
--
-- Answers {'ok'}; {'rescan'} when it takes another call; {'nostate'}, {'othertopic'}.

local s, refusal = load()
if not s then return refusal end
local is_settled = settle(s, 4000)
if s.dirty then save(s) end
return {is_settled and 'ok' or 'rescan'}
