-- A reader goes. Returns 1 if it was there, else 0.
--
-- If no reader is left and `notifies` is 1, the release is published as in release_notify.lua.
local lock, value, notifies = KEYS[1], ARGV[1], ARGV[2]

if redis.call('zrem', lock, value) == 0 then
  return 0
end
local time = redis.call('time')
redis.call('zremrangebyscore', lock, 0, time[1] * 1000 + math.floor(time[2] / 1000))
-- The last member, if it is not the marker, ends last of all readers.
local last_end_ms = redis.call('zrange', lock, -1, -1, 'withscores')[2]
if last_end_ms and last_end_ms ~= '-inf' then
  redis.call('pexpireat', lock, last_end_ms)
  return 1
end
redis.call('del', lock)
if notifies == '1' then
  local receivers = redis.pcall('publish', lock, '')
  if type(receivers) == 'number' and receivers > 3 then
    redis.pcall('publish', lock, receivers)
  end
end
return 1
