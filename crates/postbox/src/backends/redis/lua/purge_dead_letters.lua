-- Deletes all dead letters. Returns their number.
if replayed then return tonumber(replayed) end
promote_due()
local count = call('ZCARD', DEAD_LETTER_IDS)
call('UNLINK', DEAD_LETTER_IDS, DEAD_LETTERS)
finish_operation(tostring(count))
return count
