-- Removes all dead letters. Answers how many.
if replayed then
  return tonumber(replayed)
end
--@messages
promote_due()
local many = call('ZCARD', DEAD_LETTER_IDS)
call('UNLINK', DEAD_LETTER_IDS, DEAD_LETTERS)
finish_operation(tostring(many))
return many
