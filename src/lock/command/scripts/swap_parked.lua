-- Sets the key to another token as swap.lua does, and removes the entry of the old one, which would be served when the
-- new one has ended. Returns 1 if the key held the old token, else 0.
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
-- A server at its memory limit refuses a script's SET, unless the script has written before. This SET takes no memory,
-- so a PEXPIRE, which is never refused, goes before it.
redis.call('pexpire', lock, ttl_ms)
redis.call('set', lock, new_token, 'px', ttl_ms)
return 1
