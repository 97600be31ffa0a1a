-- Raises the fence of an ended lock to its token, as fenced_release_serve.lua needs. Follows key.lua.
--
-- A token outside the window changes nothing. If the fence cannot be raised, the release still counts.
local function raise_fence(fence, token, older_us, newer_us, fence_ttl_ms, now_us)
  local found, number = redis.pcall('get', fence) or '0', tonumber(token)
  local largest = type(found) == 'string' and tonumber(string.match(found, '^%d+$'))
  if largest and number > largest and number > now_us - older_us and number <= now_us + newer_us then
    redis.pcall('set', fence, token, 'px', fence_ttl_ms)
  end
end

