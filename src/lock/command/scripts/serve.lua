-- Sends a message to a waiter. Returns the number of receivers, or an error. A sharded channel's name ends with `s`.
local function send(entry, message)
  return redis.pcall(string.sub(entry.channel, -1) == 's' and 'spublish' or 'publish', entry.channel, message)
end

-- Rings a waiter whose attempt is too old for a grant: its client must ask again within a short time. Returns whether
-- to remove its entry because nobody received the message; nil if the waiter cannot be rung.
local function ring(call, entry, member, ticket)
  local receivers = send(entry, entry.vote .. 'r')
  if receivers == 0 then
    return true
  end
  if type(receivers) ~= 'number' then
    return nil
  end
  call.notified = true
  if entry.stay_end > call.now_ms + RUNG_MS then
    local rung_end = string.format('%013.0f', call.now_ms + RUNG_MS)
    local rung = string.sub(member, 1, 32) .. rung_end .. string.sub(member, 46)
    -- Added before the old entry is removed: an empty queue would be deleted together with its TTL.
    if redis.pcall('zadd', call.queue, ticket, rung) == 1 then
      redis.pcall('zrem', call.queue, member)
    end
  end
  return false
end

-- Takes back what `grant` wrote. The fence stays: nothing lowers it.
local function undo(call, entry)
  if entry.mode == 'r' then
    redis.pcall('zrem', call.lock, entry.value)
    call.held = settle_readers(call.lock, call.now_ms)
  else
    redis.pcall('del', call.lock)
    call.held = 'none'
  end
end

-- Writes the key for a waiter and notifies it. Returns whether the waiter has the lock; nil if serving must stop.
local function grant(call, entry, member, ticket, is_own)
  local refused = write(call.lock, call.fence, entry, call.now_ms)
  if refused then
    call.error = is_own and refused or nil
    return nil
  end
  call.held, call.holder = entry.mode == 'r' and 'readers' or 'value', entry.value
  -- An entry that stayed would be served again after its lock ends.
  if redis.pcall('zrem', call.queue, member) ~= 1 then
    undo(call, entry)
    return nil
  end
  if is_own then
    call.is_granted = true
    return true
  end
  -- The key is written before the vote is sent, because the write may fail.
  local receivers = send(entry, entry.vote)
  if type(receivers) == 'number' and receivers > 0 then
    call.notified = true
    return true
  end
  undo(call, entry)
  if receivers == 0 then
    return false
  end
  redis.pcall('zadd', call.queue, ticket, member)
  redis.pcall('pexpire', call.queue, 2 * STAY_MAX_MS)
  return nil
end

-- Whether the key is free for a waiter of this mode.
local function is_free(held, mode)
  return held == 'none' or held == 'readers' and mode == 'r'
end

-- Decides about the first entry: 'remove', 'ring', 'grant' or 'stop'.
local function judge(call, entry, member, is_own)
  local now_ms = call.now_ms
  if not is_own and is_over(member, now_ms) then
    return 'remove'
  end
  -- A repair wrote the key; or this call ends the value, and did not find its entry at the ticket.
  if has(call.lock, call.held, call.holder, entry.value, now_ms) or entry.value == call.ended then
    return 'remove'
  end
  if not is_free(call.held, entry.mode) then
    return 'stop'
  end
  local reason, largest
  if entry.mode == 'f' then
    reason, largest = refusal(call.fence, entry, call.now_us)
  end
  if is_own then
    call.reason, call.largest = reason, largest
    -- A waiter that stays keeps its place, to come back with a larger token.
    return not reason and 'grant' or reason == 1 and not call.is_brief and 'stop' or 'remove'
  end
  if reason and reason ~= 1 then
    return 'remove'
  end
  return (reason or entry.fresh_end <= now_ms) and 'ring' or 'grant'
end

-- Serves the first live waiters. Raises no error, because a release has already deleted the key.
--
-- `call` has the keys `lock`, `queue` and `fence`, the clocks `now_us` and `now_ms`, and what the lock's key holds:
-- `held` and `holder`, which are kept up to date. `own` is the entry whose own command runs: the reply is its grant,
-- and nothing is published. `is_brief` says that this entry does not stay. `ended` is a value that the call has ended.
--
-- Adds to `call`: `is_granted`, the entry `own` has the lock; `notified`, other waiters got it or were rung; `more`,
-- the call stopped at its limit; `reason` and `largest`, why the token of `own` is refused; `error`, why its write failed.
local function serve(call)
  local removed_count, reader_count = 0, 0
  while true do
    local found = redis.pcall('zrange', call.queue, 0, 0, 'withscores')
    local member, ticket = found[1], found[2]
    if not member or string.sub(member, 1, 11) ~= MARK then
      return
    end
    if removed_count >= REMOVED_MAX or reader_count >= LOOKED_MAX then
      call.more = true
      return
    end

    local entry, is_own = decode(member), member == call.own
    local course = judge(call, entry, member, is_own)
    local is_in_vain = course == 'remove'
    if course == 'stop' then
      return
    elseif course == 'grant' then
      local is_granted = grant(call, entry, member, ticket, is_own)
      if is_granted == nil or is_granted and entry.mode ~= 'r' then
        return
      end
      if is_granted then
        reader_count = reader_count + 1
      else
        removed_count = removed_count + 1
      end
    elseif course == 'ring' then
      is_in_vain = ring(call, entry, member, ticket)
      if not is_in_vain then
        return
      end
    end
    if is_in_vain then
      -- An entry that cannot be removed would stay the first for ever.
      if redis.pcall('zrem', call.queue, member) ~= 1 then
        return
      end
      removed_count = removed_count + 1
    end
  end
end

-- A digest that tells one value of the lock's key from the next; zero for no value. Its 24 bits reveal no token.
local function digest(held, holder)
  local sum = 0
  for place = 1, held == 'value' and math.min(#holder, 64) or 0 do
    sum = (sum * 31 + string.byte(holder, place)) % 16777216
  end
  return sum
end

-- Serves after another command. Returns `call` with what `serve` adds. `ended` is as in `serve`.
local function serve_behind(lock, queue, fence, held, holder, ended)
  local call = {lock = lock, queue = queue, fence = fence, held = held, holder = holder, ended = ended}
  if redis.pcall('exists', queue) ~= 1 then
    return call
  end
  local time = redis.pcall('time')
  if not time.err then
    call.now_us, call.now_ms = clocks(time)
    serve(call)
  end
  return call
end

-- A release's answer: 0 nothing deleted, 1 deleted, 2 deleted and waiters notified; plus 4 if a bare serve must follow
-- at once.
local function answer(is_deleted, call)
  return (is_deleted and (call.notified and 2 or 1) or 0) + (call.more and 4 or 0)
end

