-- The end of a fenced lock: raises the fence to the token, as fenced_release_serve.lua does. Follows key.lua.
--
-- A token outside the window changes nothing, and neither does a fence that cannot be raised: the release stands.
local function raise_fence(fence, token, older_us, newer_us, fence_ttl_ms, now_us)
  local found, number = redis.pcall('get', fence) or '0', tonumber(token)
  local largest = type(found) == 'string' and tonumber(string.match(found, '^%d+$'))
  if largest and number > largest and number > now_us - older_us and number <= now_us + newer_us then
    redis.pcall('set', fence, token, 'px', fence_ttl_ms)
  end
end

