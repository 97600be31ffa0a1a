-- Sets a reader's end. Returns 1, or 0 if the reader is not there or its time is over.
local lock, value, ttl_ms = KEYS[1], ARGV[1], ARGV[2]

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local old_end_ms = redis.call('zscore', lock, value)
if not old_end_ms or tonumber(old_end_ms) <= now_ms then
  return 0
end
-- At its memory limit, a server refuses a script's ZADD, unless the script has written before. This ZADD needs no more
-- memory, so the purge, which is never refused, comes first.
redis.call('zremrangebyscore', lock, 0, now_ms)
redis.call('zadd', lock, now_ms + 1 + ttl_ms, value)
redis.call('pexpireat', lock, redis.call('zrange', lock, -1, -1, 'withscores')[2])
return 1
