-- Writes the record ARGV[2] at KEYS[1] where ARGV[1] is. Returns the record that is there then.
local found = redis.call('GET', KEYS[1])
if found == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  return ARGV[2]
end
return found
