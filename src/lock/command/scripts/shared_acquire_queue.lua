-- Joins the readers of a lock, if nobody holds it alone and nobody waits for it. Follows queue.lua.
--
-- Returns OK; OWN if the value is there already; or the time left of what is in the way, as PTTL reports it. A value
-- that is there keeps the later of both ends, so that a repeated or late request shortens nothing.
--
-- Reads before it writes, and sets the TTL before it purges, so that a user without the right for one of these commands
-- leaves no set without a TTL. Without the right to PEXPIREAT, the release deletes the set.
local lock, queue = KEYS[1], KEYS[2]
local value, ttl_ms = ARGV[1], ARGV[2]
local marker = 'redlatch:readers:1'

-- A set without the marker belongs to somebody else, and so does a key without a TTL.
local kind = redis.call('type', lock).ok
local left_ms = redis.call('pttl', lock)
if left_ms == -1 or kind ~= 'none' and (kind ~= 'zset' or not redis.call('zscore', lock, marker)) then
  return left_ms
end

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local old_end_ms = tonumber(redis.call('zscore', lock, value) or 0)
-- Keeps writers from starving. Somebody else's key in place of the queue does not count.
local first = redis.pcall('zrange', queue, 0, 0)[1]
if first and old_end_ms <= now_ms and string.sub(first, 1, 11) == MARK and not is_over(first, now_ms) then
  return decode(first).stay_end - now_ms
end

local end_ms = math.max(old_end_ms, now_ms + 1 + ttl_ms)
local last_end_ms = redis.call('zrange', lock, -1, -1, 'withscores')[2]
redis.call('zadd', lock, '-inf', marker, end_ms, value)
redis.call('pexpireat', lock, string.format('%.0f', math.max(end_ms, last_end_ms or 0)))
redis.call('zremrangebyscore', lock, 0, now_ms)
return redis.status_reply(old_end_ms > now_ms and 'OWN' or 'OK')
