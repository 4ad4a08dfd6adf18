-- Returns the ids of expired entries, in the order of expiry. ARGV: 5 the maximum.
call('ZREMRANGEBYSCORE', EXPIRIES, '-inf', now - GRACE_MILLIS)
return call('ZRANGEBYSCORE', EXPIRIES, '-inf', now, 'LIMIT', 0, ARGV[5])
