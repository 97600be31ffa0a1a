-- Sets lock and fence if nobody has the lock, the token is larger than the fence, and the token lies within the window
-- around this server's clock: less than `older_us` before it, at most `newer_us` after it.
--
-- Returns OK; OWN if the key has this value already; or {reason, fence, left_ms, now_us}. The reason is 0 busy, 1
-- stale, 2 past or 3 future; `left_ms` is the holder's time left as PTTL reports it.
local lock, fence = KEYS[1], KEYS[2]
local value, ttl_ms, token = ARGV[1], ARGV[2], tonumber(ARGV[3])
local older_us, newer_us, fence_ttl_ms = ARGV[4], ARGV[5], ARGV[6]

local time = redis.call('time')
local now_us = time[1] * 1000000 + time[2]
-- A fence that is not all digits belongs to another application.
local largest = tonumber(string.match(redis.call('get', fence) or '0', '^%d+$'))
if not largest then
  return redis.error_reply('ERR the fence is no number')
end

-- A key of another type, such as a set of readers, is in the way, as for SET NX.
local holder = redis.pcall('get', lock)
if type(holder) == 'table' and string.sub(holder.err, 1, 9) ~= 'WRONGTYPE' then
  return holder
end
if holder == value then
  return redis.status_reply('OWN')
end
if holder then
  return {0, largest, redis.call('pttl', lock), now_us}
end

if token <= largest then
  return {1, largest, 0, now_us}
end
if token <= now_us - older_us then
  return {2, largest, 0, now_us}
end
if token > now_us + newer_us then
  return {3, largest, 0, now_us}
end

-- The fence first, so that a failure in between locks nothing. The token is written as given: Lua's tostring would lose
-- digits.
redis.call('set', fence, ARGV[3], 'px', fence_ttl_ms)
return redis.call('set', lock, value, 'px', ttl_ms)
