-- Removes all messages, but no dead letters. Answers how many.
if replay then
  return tonumber(replay)
end
--@messages
promote()
local many = total()
call('UNLINK', PENDING, INVISIBLE, DATA, DELAYED, SPECIAL, EXPIRING, BEHIND, HEADS)
call('HDEL', META, 'tombs')
woken = 0
finish(tostring(many))
return many
