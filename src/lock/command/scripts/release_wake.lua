-- Deletes the key if it still holds the token, and wakes few of the clients that wait. Returns 1 if it did, else 0.
--
-- Each waiting client has subscribed to the channel of its group: `channels` and the number of the group. Group 0 is always
-- notified. The first two of the groups 1 to `group_count` that have members are notified, too, in a circle behind `first`. So
-- one client that stands still keeps nobody waiting.
-- If more than three clients received its message, a second one carries their number, so that not all of them try at once.
-- A user without the right to publish releases all the same.
local key, token, channels, first, group_count = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if redis.call('get', key) ~= token then
  return 0
end
redis.call('del', key)
redis.pcall('publish', channels .. '0', '')
local notified_count = 0
for turn = 1, group_count do
  local channel = channels .. (first + turn) % group_count + 1
  local receivers = redis.pcall('publish', channel, '')
  if type(receivers) ~= 'number' then
    return 1
  end
  if receivers > 3 then
    redis.pcall('publish', channel, receivers)
  end
  if receivers > 0 then
    notified_count = notified_count + 1
    if notified_count == 2 then
      return 1
    end
  end
end
return 1
