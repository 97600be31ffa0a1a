-- Deletes a lock whoever holds it: a string, or a set of readers. Serves the first waiters, even if there is no lock.
-- Returns what `answer` does. A key of any other type stays, and is an error.
local lock, queue, fence = KEYS[1], KEYS[2], KEYS[3]

local holder = redis.pcall('get', lock)
if type(holder) == 'table' and string.sub(holder.err, 1, 9) == 'WRONGTYPE' then
  holder = redis.pcall('zscore', lock, READERS)
  if not holder or type(holder) == 'table' and string.sub(holder.err, 1, 9) == 'WRONGTYPE' then
    return redis.error_reply('WRONGTYPE a key of another type is there, which is no lock: nothing was deleted')
  end
end
if type(holder) == 'table' then
  return holder
end
local is_deleted = redis.call('del', lock) == 1
return answer(is_deleted, serve_behind(lock, queue, fence, 'none'))
