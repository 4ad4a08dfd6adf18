-- Shows expired entries, those that expired first first. ARGV: 5 how many at most.
-- Those whose time of grace is over are gone by themselves.
call('ZREMRANGEBYSCORE', EXPIRIES, '-inf', now - GRACE)
return call('ZRANGEBYSCORE', EXPIRIES, '-inf', now, 'LIMIT', 0, ARGV[5])
