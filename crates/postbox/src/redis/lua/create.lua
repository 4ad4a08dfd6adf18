-- Makes the mailbox exist; its settings came with the call.
make()
finish()
return is_new and 1 or 0
