-- Adopts a lock by its handle: the adopting client's value replaces the handle's, with a new TTL. Returns 1 if the
-- handle's value was there, alone or as a reader's, otherwise 0. Follows key.lua.
--
-- `token` is a fenced lock's token, otherwise empty. A larger fence means that a later holder has had the lock.
local lock, fence = KEYS[1], KEYS[2]
local old, new, ttl_ms, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local held, holder = look(lock)
if not held then
  return holder
end
local _, now_ms = clocks(redis.call('time'))
if not has(lock, held, holder, old, now_ms) then
  return 0
end
local found = token ~= '' and redis.pcall('get', fence)
local largest = type(found) == 'string' and tonumber(string.match(found, '^%d+$'))
if largest and largest > tonumber(token) then
  return 0
end
-- At its memory limit, a server refuses commands that may use memory, unless the script has written before. The new
-- value needs no more memory, so a write that is never refused comes first.
if held == 'readers' then
  redis.call('zrem', lock, old)
else
  redis.call('pexpire', lock, ttl_ms)
end
return write(lock, fence, {mode = held == 'readers' and 'r' or 'p', grant_ms = ttl_ms, value = new}, now_ms) or 1
