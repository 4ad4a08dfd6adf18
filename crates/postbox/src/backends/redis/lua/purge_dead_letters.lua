-- Removes all dead letters. Answers how many.
if replay then
  return tonumber(replay)
end
--@messages
promote()
local many = call('ZCARD', DEAD)
call('UNLINK', DEAD, GRAVES)
finish(tostring(many))
return many
