-- The queue of waiters for a lock. Each script of waiting starts with this file.
--
-- The queue is one sorted set. The score is a waiter's ticket, in microseconds of this server's clock. The member is
-- the waiter's entry, which is removed when its attempt ends or is granted. The fields have fixed sizes:
--
--    1 mark          12 id              24 mode (p plain, f fenced, r reader)   25 round
--   33 end of its stay, ms              46 fresh until, ms                      59 TTL of a grant, ms
--   69 size of the channel's name       72 that name, then the vote of 8 bytes
--
-- Clients of several versions share a queue: a new mode, or any change to the form of an entry, needs a new mark.
--
-- A fenced waiter's token (16), half its window in microseconds (12) and the TTL of its fence (10) follow. The rest is
-- the value.
local MARK, STAY_MAX_MS, RUNG_MS = 'redlatch:1:', 3000, 200
local REMOVED_MAX, LOOKED_MAX, WAITERS_MAX, SHIFT_MAX_US = 16, 64, 4096, 3000000

local function encode(id, mode, round, stay_end, fresh_end, grant_ms, channel, vote, fenced, value)
  local numbers = string.format('%08.0f%013.0f%013.0f%010.0f%03.0f', round, stay_end, fresh_end, grant_ms, #channel)
  return MARK .. id .. mode .. numbers .. channel .. vote .. fenced .. value
end

-- The fields of an entry. If the end of its stay is no number, the stay is over.
local function decode(member)
  local channel_end = 71 + (tonumber(string.sub(member, 69, 71)) or 0)
  local entry = {
    mode = string.sub(member, 24, 24),
    stay_end = tonumber(string.sub(member, 33, 45)) or 0,
    fresh_end = tonumber(string.sub(member, 46, 58)) or 0,
    grant_ms = string.format('%.0f', tonumber(string.sub(member, 59, 68)) or 0),
    channel = string.sub(member, 72, channel_end),
    vote = string.sub(member, channel_end + 1, channel_end + 8)
  }
  local value_start = channel_end + 9
  if entry.mode == 'f' then
    entry.token = string.sub(member, value_start, value_start + 15)
    entry.half_us = tonumber(string.sub(member, value_start + 16, value_start + 27)) or 0
    entry.fence_ttl_ms = string.format('%.0f', tonumber(string.sub(member, value_start + 28, value_start + 37)) or 0)
    value_start = value_start + 38
  end
  entry.value = string.sub(member, value_start)
  return entry
end

-- Whether the stay of an entry is over. An end too far ahead was written before the clock was set back.
local function is_over(member, now_ms)
  local stay_end = tonumber(string.sub(member, 33, 45)) or 0
  return stay_end <= now_ms or stay_end > now_ms + STAY_MAX_MS
end

-- Up to 64 entries with this ticket, or the first entries if it is unknown. None if the queue is of another type.
local function entries_at(queue, ticket)
  local from, to = ticket, ticket
  if ticket == '' then
    from, to = '-inf', '+inf'
  end
  local found = redis.pcall('zrangebyscore', queue, from, to, 'limit', 0, LOOKED_MAX)
  return found.err and {} or found
end

-- Returns an error if the queue's key belongs to another application.
local function foreign_queue(queue)
  local first = redis.pcall('zrange', queue, 0, 0)
  if first.err then
    return first
  end
  if first[1] and string.sub(first[1], 1, 11) ~= MARK then
    return redis.error_reply('ERR a set of somebody else is where the queue of this lock belongs')
  end
end

