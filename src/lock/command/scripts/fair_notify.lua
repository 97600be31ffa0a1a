-- A waiter released what it had of the lock, and stays in the queue. If the lock is free, the first in the queue is
-- notified, unless it is this waiter. Returns 0.
--
-- The channel of a waiter is `channels` and its id. Where nobody is in the queue, the message goes to the channel named
-- like the lock.
local lock, tickets, heartbeats = KEYS[1], KEYS[2], KEYS[3]
local id, heartbeat_ms, channels = ARGV[1], ARGV[2], ARGV[3]

if redis.call('exists', tickets) == 1 then
  local _, refusal = purge(tickets, heartbeats, heartbeat_ms)
  if refusal then
    return refusal
  end
end
if redis.call('exists', lock) == 0 then
  local first = redis.call('zrange', tickets, 0, 0)[1]
  if not first then
    redis.pcall('publish', lock, '')
  elseif first ~= id then
    redis.pcall('publish', channels .. first, '')
  end
end
return 0
