-- Serves the first waiter of a lock whose key has expired or was released by another library. Needs no token.
--
-- Returns 1 if waiters were notified, otherwise 8 times the digest of the key's value; plus 4 if another call must
-- follow at once.
local lock, queue, fence = KEYS[1], KEYS[2], KEYS[3]

local held, holder = look(lock)
if not held then
  return holder
end
local call = serve_behind(lock, queue, fence, held, holder)
return (call.notified and 1 or 8 * digest(call.held, call.holder)) + (call.more and 4 or 0)
