-- A waiter that has no number yet: joins the queue behind all others, or keeps the ticket that it has here, and tries.
--
-- Where nobody holds the lock nor waits for it, the lock is set and the waiter leaves no ticket: {2, -1, 0, 0}.
-- Else fair_attempt.lua follows.
local lock, tickets, heartbeats = KEYS[1], KEYS[2], KEYS[3]
local value, ttl_ms, id = ARGV[1], ARGV[2], ARGV[3]
local heartbeat_ms, count_max = tonumber(ARGV[4]), tonumber(ARGV[5])

if redis.call('exists', lock, tickets) == 0 then
  redis.call('set', lock, value, 'px', ttl_ms)
  return {2, -1, 0, 0}
end
local now_ms, refusal = purge(tickets, heartbeats, heartbeat_ms)
if refusal then
  return refusal
end

local ticket = tonumber(redis.call('zscore', tickets, id))
if not ticket then
  if redis.call('zcard', tickets) >= count_max then
    return redis.error_reply('ERR too many wait for this lock')
  end
  ticket = (redis.call('zrevrange', tickets, 0, 0, 'withscores')[2] or 0) + 1
  redis.call('zadd', tickets, ticket, id)
end

