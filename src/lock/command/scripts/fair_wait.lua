-- A waiter that has a number: stands in the queue at its number, and tries.
--
-- It always joins, whoever holds the lock elsewhere: so a master that lost its queue has the ticket again.
-- fair_attempt.lua follows.
local lock, tickets, heartbeats = KEYS[1], KEYS[2], KEYS[3]
local value, ttl_ms, id = ARGV[1], ARGV[2], ARGV[3]
local heartbeat_ms, count_max, ticket = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local now_ms, refusal = purge(tickets, heartbeats, heartbeat_ms)
if refusal then
  return refusal
end

local old_ticket = tonumber(redis.call('zscore', tickets, id))
if not old_ticket and redis.call('zcard', tickets) >= count_max then
  return redis.error_reply('ERR too many wait for this lock')
end
if old_ticket ~= ticket then
  redis.call('zadd', tickets, ticket, id)
end

