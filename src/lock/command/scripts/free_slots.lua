-- Looks at the slots of a pool, from a given slot on and wrapping around, up to the fourth free slot. Changes nothing.
--
-- KEYS[1]: beginning of the slots' keys; a slot's number, a colon and the pool's name follow
-- ARGV: the pool's name, the number of its slots, the slot to begin with
-- Returns four bytes for each slot, in that order: '....' for a free slot, otherwise the first bytes of its value. A
-- shorter value, or a key of another type, is '????'.
local call, sub, tail = redis.pcall, string.sub, ':' .. ARGV[1]
local marks, free = {}, 0
local count, slot = tonumber(ARGV[2]), tonumber(ARGV[3])
for index = 1, count do
    local value = call('get', KEYS[1] .. slot .. tail)
    if not value then
        marks[index] = '....'
        free = free + 1
        if free == 4 then
            break
        end
    elseif type(value) == 'string' then
        marks[index] = #value < 4 and '????' or sub(value, 1, 4)
    elseif sub(value.err, 1, 9) == 'WRONGTYPE' then
        marks[index] = '????'
    else
        return value
    end
    slot = (slot + 1) % count
end
return table.concat(marks)
