//! Servers and faulty networks for the tests of Postbox's backends.
//!
//! - Redis: real `redis-server` processes, alone ([`Redis`]), as a cluster ([`RedisCluster`]) or with sentinels
//!   ([`RedisSentinel`]). [`Proxy`] is a TCP proxy that loses, holds and delays requests and replies.
//! - AWS: servers with the interfaces of SQS and DynamoDB ([`Moto`], [`Ministack`], [`DynamoDbLocal`]). [`HttpProxy`] is
//!   an HTTP proxy that applies a fault to each request.
//!
//! All servers listen on free ports of the loopback address. They end with the process that started them, also if it is
//! killed. A server that does not start causes a panic with its log. No test is skipped.
//!
//! ```
//! let redis = postbox_test_servers::Redis::start();
//! redis.command(&["SET", "key", "value"]);
//! assert_eq!(redis.command(&["GET", "key"]), "value");
//! ```

mod aws;
mod certificates;
mod cluster;
mod http;
mod http_proxy;
mod listener;
mod proxy;
mod redis;
mod resp;
mod sentinel;
mod supervisor;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

pub use aws::{AwsServer, DynamoDbLocal, Ministack, Moto, REGION};
pub use certificates::Certificates;
pub use cluster::{RedisCluster, RedisClusterBuilder, SlotMigration};
pub use http_proxy::{Fate, HttpProxy, HttpRequest};
pub use proxy::{Direction, Proxy, Stats};
pub use redis::{Redis, RedisBuilder, RedisVersion};
pub use resp::{Client, Reply};
pub use sentinel::RedisSentinel;

/// The folder of an installed server: the first one in `servers.txt` whose name starts with `name`.
fn installed(name: &str) -> PathBuf {
    let folders = include_str!("../servers.txt").lines().filter_map(|line| line.split(' ').next());
    let folder = folders.into_iter().find(|folder| folder.starts_with(name)).expect("a server of the list");
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("POSTBOX_TEST_SERVERS").unwrap_or_else(|| {
        let home = || variable("HOME").expect("HOME").join(".cache");
        variable("XDG_CACHE_HOME").unwrap_or_else(home).join("postbox-test-servers")
    });
    cache.join(folder)
}

/// The URL of a server that tests share. It is `POSTBOX_TEST_REDIS`, which `./test` sets, or a server that this process
/// starts. Tests must use unique names and must not change settings.
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

/// The URL of a cluster that tests share, like [`shared_redis`]. It is `POSTBOX_TEST_REDIS_CLUSTER`, or a cluster of three
/// primaries with one replica each that this process starts.
pub fn shared_cluster() -> &'static str {
    static SHARED: OnceLock<(String, Option<RedisCluster>)> = OnceLock::new();
    let (url, _) = SHARED.get_or_init(|| match std::env::var("POSTBOX_TEST_REDIS_CLUSTER") {
        Ok(url) => (url, None),
        Err(_) => {
            let cluster = stable_cluster();
            (cluster.url(), Some(cluster))
        }
    });
    url
}

macro_rules! shared_aws_server {
    ($(#[$doc:meta])* $function:ident, $server:ident, $variable:literal) => {
        $(#[$doc])*
        pub fn $function() -> &'static str {
            static SHARED: OnceLock<(String, Option<$server>)> = OnceLock::new();
            let (endpoint, _) = SHARED.get_or_init(|| match std::env::var($variable) {
                Ok(endpoint) => (endpoint, None),
                Err(_) => {
                    let server = $server::start();
                    (server.endpoint(), Some(server))
                }
            });
            endpoint
        }
    };
}

shared_aws_server! {
    /// The endpoint of a [`Moto`] that tests share, like [`shared_redis`]. It is `POSTBOX_TEST_MOTO`, or a server that
    /// this process starts.
    shared_moto, Moto, "POSTBOX_TEST_MOTO"
}

shared_aws_server! {
    /// The endpoint of a [`Ministack`] that tests share, like [`shared_redis`]. It is `POSTBOX_TEST_MINISTACK`, or a
    /// server that this process starts.
    shared_ministack, Ministack, "POSTBOX_TEST_MINISTACK"
}

shared_aws_server! {
    /// The endpoint of a [`DynamoDbLocal`] that tests share, like [`shared_redis`]. It is `POSTBOX_TEST_DYNAMODB`, or a
    /// server that this process starts.
    shared_dynamodb, DynamoDbLocal, "POSTBOX_TEST_DYNAMODB"
}

/// Starts three primaries with one replica each. The node timeout is so long that a busy machine causes no fail-over.
pub fn stable_cluster() -> RedisCluster {
    RedisCluster::builder().replicas(1).node_timeout(Duration::from_secs(30)).start()
}
