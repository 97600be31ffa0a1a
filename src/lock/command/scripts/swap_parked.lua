-- Sets the key to another token as swap.lua does, and removes the old token's entry, which would be served after the
-- new token's lock. Returns 1 if the key held the old token, otherwise 0.
--
-- `at` is the ticket of the old token's entry, as in park.lua.
local lock, queue, at, old_token, new_token, ttl_ms = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

for _, member in ipairs(entries_at(queue, at)) do
  if string.sub(member, 1, 11) == MARK and decode(member).value == old_token then
    redis.pcall('zrem', queue, member)
  end
end
if redis.call('get', lock) ~= old_token then
  return 0
end
-- At its memory limit, a server refuses a script's SET, unless the script has written before. This SET needs no more
-- memory, so a PEXPIRE, which is never refused, comes first.
redis.call('pexpire', lock, ttl_ms)
redis.call('set', lock, new_token, 'px', ttl_ms)
return 1
