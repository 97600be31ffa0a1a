-- Removes a reader, and serves the first waiters. Returns what `answer` does.
local lock, queue, fence, value = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

if redis.call('zrem', lock, value) == 0 then
  return 0
end
local _, now_ms = clocks(redis.call('time'))
local held = settle_readers(lock, now_ms)
return answer(true, serve_behind(lock, queue, fence, held))
