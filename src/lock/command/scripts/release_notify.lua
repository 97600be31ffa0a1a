-- Deletes the key if it still holds the token, and publishes the release on the channel named like the key.
-- Returns 1 if it did, else 0.
--
-- If more than three clients received the message, a second one carries their number, so that not all of them try at once.
-- A user without the right to publish releases all the same.
local key, token = KEYS[1], ARGV[1]

if redis.call('get', key) ~= token then
  return 0
end
redis.call('del', key)
local receivers = redis.pcall('publish', key, '')
if type(receivers) == 'number' and receivers > 3 then
  redis.pcall('publish', key, receivers)
end
return 1
