-- The queue of a fair lock. Each script of fair locks starts with this file.
--
-- The queue is two sorted sets: each waiter's ticket, a number, and each waiter's heartbeat, the millisecond of this
-- server's clock up to which the ticket counts without another heartbeat.

-- Removes the tickets that no longer count: their heartbeat is over, or lasts longer than any, as after the clock was
-- set back. One call removes at most a hundred of each. Returns the clock, or nil and an error.
local function purge(tickets, heartbeats, heartbeat_ms)
  -- A set whose first member does not start like a waiter's id belongs to another application.
  for _, set in ipairs({tickets, heartbeats}) do
    local first = redis.call('zrange', set, 0, 0)[1]
    if first and string.sub(first, 1, 11) ~= 'redlatch:1:' then
      return nil, redis.error_reply('ERR a set of somebody else is where the queue of this lock belongs')
    end
  end
  local time = redis.call('time')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  for _, range in ipairs({{'-inf', now_ms}, {now_ms + heartbeat_ms + 1, '+inf'}}) do
    for _, id in ipairs(redis.call('zrangebyscore', heartbeats, range[1], range[2], 'limit', 0, 100)) do
      redis.call('zrem', tickets, id)
      redis.call('zrem', heartbeats, id)
    end
  end
  return now_ms
end

