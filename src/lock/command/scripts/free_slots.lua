-- Looks for free slots of a pool, from one slot on and around, and stops at the fourth. It changes nothing.
--
-- KEYS[1]: how the keys of slots begin; a slot's number, a colon and the pool's name follow
-- ARGV: the pool's name, the number of its slots, the slot to begin with
-- Returns the numbers of the free slots, with a blank behind each.
local free, found = '', 0
local count, slot = tonumber(ARGV[2]), tonumber(ARGV[3])
for _ = 1, count do
    if redis.call('pttl', KEYS[1] .. slot .. ':' .. ARGV[1]) == -2 then
        free = free .. slot .. ' '
        found = found + 1
        if found == 4 then
            return free
        end
    end
    slot = (slot + 1) % count
end
return free
