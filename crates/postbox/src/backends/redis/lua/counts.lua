-- Returns the numbers of ready, delayed and leased messages, and of dead letters.
promote_due()
finish_operation()
local delayed = call('HLEN', DELAYED)
local leased = call('ZCARD', INVISIBLE) - delayed
return { message_count() - delayed - leased, delayed, leased, call('ZCARD', DEAD_LETTER_IDS) }
