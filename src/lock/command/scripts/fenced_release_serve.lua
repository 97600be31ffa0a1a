-- Deletes the lock if it still holds the value, raises the fence to the token, and serves the first waiter. Returns
-- what `answer` does.
--
-- The fence is raised even if the lock is gone, provided that the token lies within the window around this server's
-- clock.
local lock, queue, fence = KEYS[1], KEYS[2], KEYS[3]
local value, token, older_us, newer_us, fence_ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local held, holder = look(lock)
if not held then
  return holder
end
local is_deleted = held == 'value' and holder == value
if is_deleted then
  redis.call('del', lock)
end
-- The fence before the waiters, because it decides about their tokens.
local time = redis.pcall('time')
if not time.err then
  raise_fence(fence, token, older_us, newer_us, fence_ttl_ms, (clocks(time)))
end
if not is_deleted then
  return 0
end
return answer(true, serve_behind(lock, queue, fence, 'none'))
