-- Ends an attempt, or the lock that it got: removes its entry and its value, and serves the first waiters. Returns what
-- `answer` does.
--
-- `at` is the ticket of its entry, as in park.lua. A handle does not know the ticket: then the first entries are
-- searched, since the holder's ticket is one of the smallest. `token` is the token of a fenced lock that was held,
-- which raises the fence (fence.lua); otherwise empty.
local lock, queue, fence, at, value = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local token, half_us, fence_ttl_ms = ARGV[3], ARGV[4], ARGV[5]

local held, holder = look(lock)
if not held then
  return holder
end
local now_us, now_ms = clocks(redis.call('time'))
local is_deleted
is_deleted, held = take_out(lock, held, holder, value, now_ms)
-- Only this attempt's entry: the entry of a later round stays.
for _, member in ipairs(entries_at(queue, at)) do
  if string.sub(member, 1, 11) == MARK and decode(member).value == value then
    redis.pcall('zrem', queue, member)
  end
end
if token ~= '' then
  raise_fence(fence, token, half_us, half_us, fence_ttl_ms, now_us)
end
return answer(is_deleted, serve_behind(lock, queue, fence, held, holder, value))
