-- Creates the mailbox unless it exists. Returns 1.
if replayed then return 1 end
ensure_mailbox()
finish_operation('')
return 1
