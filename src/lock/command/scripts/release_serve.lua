-- Deletes the key if it still holds the token, and serves the first waiter. Returns what `answer` does.
local lock, queue, fence, token = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

if redis.call('get', lock) ~= token then
  return 0
end
redis.call('del', lock)
return answer(true, serve_behind(lock, queue, fence, 'none'))
