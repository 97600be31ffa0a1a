-- The lock's key: reads it, writes it for a waiter, and takes a value out, for every mode. Follows queue.lua.
--
-- `held` is 'none'; 'value' with the value; 'readers', a set that shared_acquire_queue.lua joins; or 'other', a foreign
-- key, which stays.
local READERS = 'redlatch:readers:1'

-- The server's clock in microseconds and in milliseconds.
local function clocks(time)
  return time[1] * 1000000 + time[2], time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns what the key holds, or nil and the server's error.
local function look(lock)
  local holder = redis.pcall('get', lock)
  if not holder then
    return 'none'
  end
  if type(holder) == 'string' then
    return 'value', holder
  end
  if string.sub(holder.err, 1, 9) ~= 'WRONGTYPE' then
    return nil, holder
  end
  -- A set without the marker belongs to somebody else, and so does a key without a TTL.
  local is_set = type(redis.pcall('zscore', lock, READERS)) == 'string' and redis.pcall('pttl', lock) ~= -1
  return is_set and 'readers' or 'other'
end

-- Whether the key has this value, alone or as a reader's whose time is not over.
local function has(lock, held, holder, value, now_ms)
  if held == 'readers' then
    local end_ms = redis.pcall('zscore', lock, value)
    return type(end_ms) == 'string' and tonumber(end_ms) > now_ms
  end
  return held == 'value' and holder == value
end

-- Sets the TTL of a set of readers to the end of its last reader, or deletes the empty set. Returns what the key then
-- holds: 'readers' also if it cannot be read.
local function settle_readers(lock, now_ms)
  redis.pcall('zremrangebyscore', lock, 0, now_ms)
  local last = redis.pcall('zrange', lock, -1, -1, 'withscores')
  if last.err then
    return 'readers'
  end
  if last[2] and last[2] ~= '-inf' then
    redis.pcall('pexpireat', lock, last[2])
    return 'readers'
  end
  redis.pcall('del', lock)
  return 'none'
end

-- Removes a value from the key. Returns whether it was there, and what the key then holds.
local function take_out(lock, held, holder, value, now_ms)
  if held == 'value' and holder == value then
    redis.call('del', lock)
    return true, 'none'
  end
  if held == 'readers' and redis.call('zrem', lock, value) == 1 then
    return true, settle_readers(lock, now_ms)
  end
  return false, held
end

-- Decides about a fenced waiter's token as fenced_acquire.lua does. Returns nil if it is accepted; 1 stale, 2 past or 3
-- future, and the fence; or 4 and an error.
local function refusal(fence, entry, now_us)
  local found = redis.pcall('get', fence) or '0'
  if type(found) == 'table' then
    return 4, found
  end
  -- A fence that is not all digits belongs to another application.
  local largest, token = tonumber(string.match(found, '^%d+$')), tonumber(entry.token) or 0
  if not largest then
    return 4, redis.error_reply('ERR the fence is no number')
  end
  if token <= now_us - entry.half_us then
    return 2, largest
  end
  if token > now_us + entry.half_us then
    return 3, largest
  end
  if token <= largest then
    return 1, largest
  end
end

-- Writes the key for an entry that may have it, with the TTL of a grant. Returns an error if nothing was written.
local function write(lock, fence, entry, now_ms)
  if entry.mode == 'r' then
    local end_ms = now_ms + 1 + entry.grant_ms
    local last = redis.pcall('zrange', lock, -1, -1, 'withscores')
    local done = last.err and last or redis.pcall('zadd', lock, '-inf', READERS, string.format('%.0f', end_ms), entry.value)
    if type(done) == 'table' then
      return done
    end
    done = redis.pcall('pexpireat', lock, string.format('%.0f', math.max(end_ms, tonumber(last[2]) or 0)))
    if type(done) == 'table' then
      -- A set without a TTL would stay.
      redis.pcall('zrem', lock, entry.value)
      settle_readers(lock, now_ms)
      return done
    end
    return nil
  end
  -- The fence first, so that a failure in between locks nothing. The token is copied as text, digit by digit.
  if entry.mode == 'f' then
    local set = redis.pcall('set', fence, string.match(entry.token, '^0*(.*)$'), 'px', entry.fence_ttl_ms)
    if set.err then
      return set
    end
  end
  local set = redis.pcall('set', lock, entry.value, 'px', entry.grant_ms)
  return set.err and set or nil
end

