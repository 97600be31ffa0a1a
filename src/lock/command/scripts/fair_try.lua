-- A caller that does not wait: sets the lock if it is free and nobody is in the queue. It leaves no ticket.
--
-- Returns {way, -1, ahead, left_ms}. The way is 0 if the lock is held, 1 if others are in the queue, 2 if the lock is set.
-- `left_ms` is the holder's time as PTTL reports it, or the time of the first waiter's heartbeat.
local lock, tickets, heartbeats = KEYS[1], KEYS[2], KEYS[3]
local value, ttl_ms, heartbeat_ms = ARGV[1], ARGV[2], ARGV[3]

if redis.call('exists', lock, tickets) == 0 then
  redis.call('set', lock, value, 'px', ttl_ms)
  return {2, -1, 0, 0}
end
local now_ms, refusal = purge(tickets, heartbeats, heartbeat_ms)
if refusal then
  return refusal
end

local ahead = redis.call('zcard', tickets)
local left_ms = redis.call('pttl', lock)
if left_ms ~= -2 then
  return {0, -1, ahead, left_ms}
end
if ahead > 0 then
  local first = redis.call('zrange', tickets, 0, 0)[1]
  local end_ms = redis.call('zscore', heartbeats, first)
  -- A ticket without a heartbeat counts no longer.
  if not end_ms then
    redis.call('zrem', tickets, first)
  end
  return {1, -1, ahead, math.max((end_ms or now_ms) - now_ms, 0)}
end
redis.call('set', lock, value, 'px', ttl_ms)
return {2, -1, 0, 0}
