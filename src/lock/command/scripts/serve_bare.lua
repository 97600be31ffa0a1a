-- Serves the first waiter of a lock whose key has expired or was released by another library. It needs no token.
--
-- Returns 0 nobody was notified, 1 waiters were; 4 more where another call is to follow at once; and 8 times the digest of the
-- value that the lock's key has, where nobody was notified.
local lock, queue, fence = KEYS[1], KEYS[2], KEYS[3]

local held, holder = look(lock)
if not held then
  return holder
end
local call = serve_behind(lock, queue, fence, held, holder)
return (call.notified and 1 or 8 * digest(call.held, call.holder)) + (call.more and 4 or 0)
