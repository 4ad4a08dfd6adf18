-- How many messages are ready, delayed, leased, dead.
--@messages
promote()
finish()
local delayed = call('HLEN', DELAYED)
local leased = call('ZCARD', INVISIBLE) - delayed
return { total() - delayed - leased, delayed, leased, call('ZCARD', DEAD) }
