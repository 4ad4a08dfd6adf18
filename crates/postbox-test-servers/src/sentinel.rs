//! A primary and a replica with sentinels.

use crate::Redis;
use crate::supervisor::eventually;

const NAME: &str = "postbox";

/// One primary, one replica and three sentinels with a quorum of two. If the primary does not answer for 500 ms, the
/// replica takes its place.
pub struct RedisSentinel {
    servers: [Redis; 2],
    sentinels: Vec<Redis>,
}

impl RedisSentinel {
    /// Starts all servers and waits until the sentinels know each other and the replica.
    pub fn start() -> RedisSentinel {
        let primary = Redis::start();
        // Start the replica before the sentinels: they look for replicas when they start, then every ten seconds.
        let replica = Redis::builder().replica_of(&primary).start();
        let sentinel = || {
            let mut options = Redis::builder()
                .config("sentinel monitor", &format!("{NAME} 127.0.0.1 {} 2", primary.port()))
                .config("sentinel down-after-milliseconds", &format!("{NAME} 500"))
                .config("sentinel failover-timeout", &format!("{NAME} 1000"));
            options.sentinel = true;
            options.start()
        };
        let sentinels = (0..3).map(|_| sentinel()).collect();
        let all = RedisSentinel { servers: [primary, replica], sentinels };
        for sentinel in &all.sentinels {
            eventually("sentinels that know each other", || {
                let reply = sentinel.command(&["SENTINEL", "MASTER", NAME]);
                let lines: Vec<&str> = reply.lines().collect();
                let field = |name| lines.iter().position(|line| *line == name).map(|at| lines[at + 1]);
                let known = (field("num-other-sentinels"), field("num-slaves"), field("flags"));
                if known == (Some("2"), Some("1"), Some("master")) { Ok(()) } else { Err(format!("{known:?}")) }
            });
        }
        all
    }

    /// The name of the primary in the sentinels' configuration.
    pub fn primary_name(&self) -> &'static str {
        NAME
    }

    /// A `redis://` URL for each sentinel.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Redis::url).collect()
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// Waits until all running sentinels name the same primary and that server runs as a primary. Returns it.
    pub fn primary(&self) -> &Redis {
        eventually("sentinels that agree on a primary", || {
            let named: Vec<String> = self
                .sentinels
                .iter()
                .filter(|sentinel| sentinel.is_running())
                .map(|sentinel| sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]))
                .collect();
            let is_named =
                |server: &&Redis| named.iter().all(|named| *named == format!("127.0.0.1\n{}", server.port()));
            let server = self.servers.iter().find(is_named).ok_or_else(|| format!("the sentinels name {named:?}"))?;
            if server.is_running() && server.info_field("replication", "role") == "master" {
                Ok(server)
            } else {
                Err(format!("the sentinels name {}, which is not a running primary", server.port()))
            }
        })
    }

    /// The server that is not the primary.
    pub fn replica(&self) -> &Redis {
        let primary = self.primary().port();
        self.servers.iter().find(|server| server.port() != primary).expect("two servers")
    }

    /// Kills the primary and waits until the replica has taken its place. Returns the killed server. After
    /// [`Redis::restart`], the sentinels make it a replica.
    pub fn fail_over(&self) -> &Redis {
        let old = self.primary();
        old.kill();
        assert_ne!(self.primary().port(), old.port());
        old
    }
}
