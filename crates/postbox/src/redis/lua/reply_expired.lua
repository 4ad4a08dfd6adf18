-- Shows expired entries, those that expired first first. ARGV: 5 how many at most.
return call('ZRANGEBYSCORE', EXPIRIES, '-inf', now, 'LIMIT', 0, ARGV[5])
