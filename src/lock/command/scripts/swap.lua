-- Sets the key to another token with a new TTL if it still holds the old token. Returns 1 if it did, otherwise 0.
local key, old_token, new_token, ttl_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('get', key) ~= old_token then
  return 0
end
-- At its memory limit, a server refuses a script's SET, unless the script has written before. This SET needs no more
-- memory, so a PEXPIRE, which is never refused, comes first.
redis.call('pexpire', key, ttl_ms)
redis.call('set', key, new_token, 'px', ttl_ms)
return 1
