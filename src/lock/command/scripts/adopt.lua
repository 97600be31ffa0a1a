-- A lock passes to another client by its handle: that client's value takes the place of the handle's, with a TTL of its own.
-- Returns 1 if the handle's value was there, alone or as that of a reader, else 0. Follows key.lua.
--
-- `token` is that of a fenced lock, else empty. Where the fence is larger a later holder has had the lock.
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
-- A server at its memory limit refuses what may take memory, unless the script has written before. The new value takes
-- none, so a write that is never refused goes before it.
if held == 'readers' then
  redis.call('zrem', lock, old)
else
  redis.call('pexpire', lock, ttl_ms)
end
return write(lock, fence, {mode = held == 'readers' and 'r' or 'p', grant_ms = ttl_ms, value = new}, now_ms) or 1
