-- The end of fair_join.lua and fair_wait.lua, whose locals it uses: a waiter with a ticket gives a heartbeat and tries.
-- The lock is set if it is free and nobody has a smaller ticket.
--
-- Returns {way, ticket, ahead, left_ms}. The way is 0 if the lock is held, 1 if others are ahead, 2 if the lock is set.
-- `left_ms` is the holder's time as PTTL reports it, or the time of the first waiter's heartbeat.
redis.call('zadd', heartbeats, now_ms + heartbeat_ms, id)
redis.call('pexpire', tickets, 2 * heartbeat_ms)
redis.call('pexpire', heartbeats, 2 * heartbeat_ms)

local ahead = redis.call('zrank', tickets, id)
local left_ms = redis.call('pttl', lock)
if left_ms ~= -2 then
  return {0, ticket, ahead, left_ms}
end
if ahead > 0 then
  local first = redis.call('zrange', tickets, 0, 0)[1]
  local end_ms = redis.call('zscore', heartbeats, first)
  -- A ticket without a heartbeat counts no longer.
  if not end_ms then
    redis.call('zrem', tickets, first)
  end
  return {1, ticket, ahead, math.max((end_ms or now_ms) - now_ms, 0)}
end

-- Some versions of Redis write large Lua numbers as 1e+8, which is no TTL: `ttl_ms` is the string that came.
-- The ticket stays: a minority of masters that set the lock is no lock, and its waiter keeps its place there.
redis.call('set', lock, value, 'px', ttl_ms)
redis.call('zadd', heartbeats, now_ms + math.min(heartbeat_ms, tonumber(ttl_ms)), id)
return {2, ticket, 0, 0}
