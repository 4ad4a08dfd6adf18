//! Servers and a faulty network for the tests of Postbox's backends: real `redis-server` processes, alone ([`Redis`]), as
//! a cluster ([`RedisCluster`]) or watched by sentinels ([`RedisSentinel`]), and a TCP proxy that loses, holds and delays
//! what passes ([`Proxy`]).
//!
//! Everything is on free ports of the loopback address and ends with the process that started it, however that ends. What
//! does not come up panics and shows the server's log; nothing is skipped.
//!
//! ```
//! let redis = postbox_test_servers::Redis::start();
//! redis.command(&["SET", "key", "value"]);
//! assert_eq!(redis.command(&["GET", "key"]), "value");
//! ```

mod certificates;
mod cluster;
mod proxy;
mod redis;
mod resp;
mod sentinel;
mod supervisor;

use std::sync::OnceLock;
use std::time::Duration;

pub use certificates::Certificates;
pub use cluster::{RedisCluster, RedisClusterBuilder, SlotMigration};
pub use proxy::{Direction, Proxy, Stats};
pub use redis::{Redis, RedisBuilder};
pub use resp::{Client, Reply};
pub use sentinel::RedisSentinel;

/// The URL of a server that tests share: that of `POSTBOX_TEST_REDIS`, which `./test` sets, or one of this process. Use
/// names that nobody else uses, and change no settings.
pub fn shared_redis() -> &'static str {
    static SHARED: OnceLock<(String, Option<Redis>)> = OnceLock::new();
    let (url, _) = SHARED.get_or_init(|| match std::env::var("POSTBOX_TEST_REDIS") {
        Ok(url) => (url, None),
        Err(_) => {
            let redis = Redis::start();
            (redis.url(), Some(redis))
        }
    });
    url
}

/// The URL of a cluster that tests share, like [`shared_redis`]: that of `POSTBOX_TEST_REDIS_CLUSTER`, or three primaries
/// with a replica each.
pub fn shared_cluster() -> &'static str {
    static SHARED: OnceLock<(String, Option<RedisCluster>)> = OnceLock::new();
    let (url, _) = SHARED.get_or_init(|| match std::env::var("POSTBOX_TEST_REDIS_CLUSTER") {
        Ok(url) => (url, None),
        Err(_) => {
            let cluster = calm_cluster();
            (cluster.url(), Some(cluster))
        }
    });
    url
}

/// Three primaries with a replica each, on which a busy machine causes no fail-over.
pub fn calm_cluster() -> RedisCluster {
    RedisCluster::builder().replicas(1).node_timeout(Duration::from_secs(30)).start()
}
