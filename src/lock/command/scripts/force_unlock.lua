-- Deletes a lock whoever holds it: a string, or a set of readers. Returns 1, or 0 if there is no lock.
-- A key of any other type stays, and is an error.
local lock = KEYS[1]

local holder = redis.pcall('get', lock)
if type(holder) == 'table' and string.sub(holder.err, 1, 9) == 'WRONGTYPE' then
  holder = redis.pcall('zscore', lock, 'redlatch:readers:1')
  if not holder or type(holder) == 'table' and string.sub(holder.err, 1, 9) == 'WRONGTYPE' then
    return redis.error_reply('WRONGTYPE a key of another type is there, which is no lock: nothing was deleted')
  end
end
if type(holder) == 'table' then
  return holder
end
return redis.call('del', lock)
