-- A waiter's attempt: gets the lock, or stays in the queue. It replaces the waiter's last attempt here, and ends that
-- attempt's value.
--
-- Returns {1, ticket, now_us, more} if granted; {2, ticket, now_us, 0} if the key has this value already; or {0,
-- ticket, now_us, more, is_first, left_ms, readers, label, reason, fence, digest} if waiting. `more` is 1 if a bare
-- serve must follow at once. `is_first` is 1 for the first of the queue. `left_ms` is the rest of the lock's key as
-- PTTL reports it, or -3 if unknown; `readers` is their number; `label` is the holder's label with its separator, or
-- empty. `reason` and `fence` are as in fenced_acquire.lua; with the reasons 2 and 3 the entry is gone. `digest` is the
-- digest of the holder's value. An error leaves no entry.
--
-- `at` is the ticket of the waiter's last entry here: as this master answered, otherwise as asked for. A ticket is
-- moved if clocks are seconds apart; an entry that is not found at its ticket stays until its time is over. `fenced` is
-- the token, half the window and the TTL of the fence.
local lock, queue, fence = KEYS[1], KEYS[2], KEYS[3]
local id, round, ticket, at, waited_us, old, yields = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local mode, stay_ms, fresh_ms, grant_ms, channel = ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12]
local vote, fenced, value = ARGV[13], ARGV[14], ARGV[15]

local held, holder = look(lock)
if not held then
  return holder
end
local now_us, now_ms = clocks(redis.call('time'))
local asked_us = now_us - waited_us
ticket = string.format('%.0f', math.max(asked_us - SHIFT_MAX_US, math.min(tonumber(ticket), asked_us + SHIFT_MAX_US)))
if has(lock, held, holder, value, now_ms) then
  return {2, tonumber(ticket), now_us, 0}
end
local had_old
had_old, held = take_out(lock, held, holder, old, now_ms)
local foreign = foreign_queue(queue)
if foreign then
  return foreign
end

-- A late command from an earlier connection must not remove the entry of a later round.
local is_late = false
for _, member in ipairs(entries_at(queue, at)) do
  if string.sub(member, 12, 23) == id then
    if (tonumber(string.sub(member, 25, 32)) or 0) > tonumber(round) then
      is_late = true
    else
      redis.pcall('zrem', queue, member)
    end
  end
end

local call = {lock = lock, queue = queue, fence = fence, held = held, holder = holder, now_us = now_us, now_ms = now_ms}
call.ended = old
-- Answers a waiter even if some fields cannot be read: its entry exists.
local function waiting()
  local left_ms, readers, label = redis.pcall('pttl', lock), 0, ''
  if call.held == 'readers' then
    local count = redis.pcall('zcard', lock)
    readers = type(count) == 'number' and math.max(count - 1, 0) or 0
  elseif call.held == 'value' and string.sub(call.holder, 21, 21) == '\t' then
    -- Never contains a token: only this library's values are taken apart. The label has at most 64 bytes.
    label = string.sub(call.holder, 21, 86)
  end
  left_ms = type(left_ms) == 'number' and left_ms or -3
  local more = call.more and 1 or 0
  local is_first = call.own and redis.pcall('zrange', queue, 0, 0)[1] == call.own and 1 or 0
  local sum = digest(call.held, call.holder)
  return {0, tonumber(ticket), now_us, more, is_first, left_ms, readers, label, call.reason or 0, call.largest or 0, sum}
end

-- Serves everybody except this waiter, which has no entry now.
if is_late or had_old and yields == '1' then
  serve(call)
end
if is_late then
  return waiting()
end

local own = encode(id, mode, round, now_ms + stay_ms, now_ms + fresh_ms, grant_ms, channel, vote, fenced, value)
-- Nobody waits.
if is_free(call.held, mode) and redis.call('exists', queue) == 0 then
  local entry = decode(own)
  if mode ~= 'f' or not refusal(fence, entry, now_us) then
    return write(lock, fence, entry, now_ms) or {1, tonumber(ticket), now_us, 0}
  end
end

-- The queue is full: looks for dead entries from a random rank, which comes from the token.
if redis.call('zcard', queue) >= WAITERS_MAX then
  local rank = (256 * string.byte(value) + string.byte(value, 2)) % WAITERS_MAX
  for _, member in ipairs(redis.call('zrange', queue, rank, rank + LOOKED_MAX - 1)) do
    if string.sub(member, 1, 11) == MARK and is_over(member, now_ms) then
      redis.pcall('zrem', queue, member)
    end
  end
end
local refused
if redis.call('zcard', queue) >= WAITERS_MAX then
  refused = redis.error_reply('ERR too many wait for this lock')
else
  local done = redis.pcall('zadd', queue, ticket, own)
  if type(done) ~= 'table' then
    done = redis.pcall('pexpire', queue, 2 * STAY_MAX_MS)
  end
  refused = type(done) == 'table' and done
end
call.own, call.is_brief = not refused and own or nil, tonumber(stay_ms) == 0
if refused then
  redis.pcall('zrem', queue, own)
end
-- Even after an error: the old value is gone, and somebody may be waiting for it.
serve(call)
refused = refused or call.error or call.reason == 4 and call.largest
if call.is_granted then
  return {1, tonumber(ticket), now_us, call.more and 1 or 0}
end

local waited = refused or waiting()
if call.own and (refused or call.is_brief) then
  redis.pcall('zrem', queue, own)
end
return waited
