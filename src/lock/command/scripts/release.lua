-- Deletes the key if it still holds the token. Returns 1 if it did, otherwise 0.
local key, token = KEYS[1], ARGV[1]

if redis.call('get', key) == token then
  return redis.call('del', key)
end
return 0
