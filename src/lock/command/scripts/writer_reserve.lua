-- A writer reserves the lock: new readers stay out while this key lives. Returns 1, or 0 if the key is somebody else's.
local reservation, value, ttl_ms = KEYS[1], ARGV[1], ARGV[2]

-- A value that does not start like this belongs to another application. Another writer's reservation is replaced.
local old_value = redis.call('get', reservation)
if old_value and string.sub(old_value, 1, 11) ~= 'redlatch:1:' then
  return 0
end
redis.call('set', reservation, value, 'px', ttl_ms)
return 1
