-- Makes the mailbox exist; its settings came with the call.
call('HSET', META, 'made', 1)
finish()
return is_new and 1 or 0
