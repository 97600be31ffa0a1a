-- Sets the key to another token with a TTL of its own if it still holds the first one. Returns 1 if it did, else 0.
local key, old_token, new_token, ttl_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('get', key) ~= old_token then
  return 0
end
-- A server at its memory limit refuses a script's SET, unless the script has written before. This SET takes no memory,
-- so a PEXPIRE, which is never refused, goes before it.
redis.call('pexpire', key, ttl_ms)
redis.call('set', key, new_token, 'px', ttl_ms)
return 1
