-- Like fenced_release.lua, and publishes the release like release_notify.lua.
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
  local receivers = redis.pcall('publish', lock, '')
  if type(receivers) == 'number' and receivers > 3 then
    redis.pcall('publish', lock, receivers)
  end
end

local largest = tonumber(string.match(redis.call('get', fence) or '0', '^%d+$'))
if largest and token > largest then
  local time = redis.call('time')
  local now_us = time[1] * 1000000 + time[2]
  if token > now_us - older_us and token <= now_us + newer_us then
    redis.pcall('set', fence, ARGV[2], 'px', fence_ttl_ms)
  end
end
return deleted
