-- A waiter leaves the queue. If the lock is free, the first of the others is notified. Returns 0.
--
-- The channel of a waiter is `channels` and its id. An empty `channels` notifies nobody. Where nobody is in the queue,
-- the message goes to the channel named like the lock.
local lock, tickets, heartbeats = KEYS[1], KEYS[2], KEYS[3]
local id, heartbeat_ms, channels = ARGV[1], ARGV[2], ARGV[3]

if redis.call('exists', tickets) == 0 then
  if channels ~= '' and redis.call('exists', lock) == 0 then
    redis.pcall('publish', lock, '')
  end
  return 0
end
local _, refusal = purge(tickets, heartbeats, heartbeat_ms)
if refusal then
  return refusal
end

redis.call('zrem', tickets, id)
redis.call('zrem', heartbeats, id)
if channels ~= '' and redis.call('exists', lock) == 0 then
  local first = redis.call('zrange', tickets, 0, 0)[1]
  if first then
    redis.pcall('publish', channels .. first, '')
  else
    redis.pcall('publish', lock, '')
  end
end
return 0
