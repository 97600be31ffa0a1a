-- Deletes the lock if it still holds the value, and raises the fence to the token. Returns 1 if it deleted the lock, else 0.
--
-- The fence is raised even where the lock is gone, if the token lies within the window around this server's clock.
local lock, fence = KEYS[1], KEYS[2]
local value, token = ARGV[1], tonumber(ARGV[2])
local older_us, newer_us, fence_ttl_ms = ARGV[3], ARGV[4], ARGV[5]

local deleted = 0
local holder = redis.pcall('get', lock)
if type(holder) == 'table' and string.sub(holder.err, 1, 9) ~= 'WRONGTYPE' then
  return holder
end
if holder == value then
  deleted = redis.call('del', lock)
end

local largest = tonumber(string.match(redis.call('get', fence) or '0', '^%d+$'))
if largest and token > largest then
  local time = redis.call('time')
  local now_us = time[1] * 1000000 + time[2]
  if token > now_us - older_us and token <= now_us + newer_us then
    -- A fence that cannot be raised, as at the memory limit, changes nothing of the release: it would only refuse a
    -- command that comes late, whose key the next release deletes anyway.
    redis.pcall('set', fence, ARGV[2], 'px', fence_ttl_ms)
  end
end
return deleted
