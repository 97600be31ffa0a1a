-- Sets the key's TTL if it still holds the token. Returns 1 if it did, otherwise 0.
local key, token, ttl_ms = KEYS[1], ARGV[1], ARGV[2]

if redis.call('get', key) == token then
  return redis.call('pexpire', key, ttl_ms)
end
return 0
