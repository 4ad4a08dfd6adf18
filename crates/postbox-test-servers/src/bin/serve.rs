//! Starts what the tests share, prints the variables that name it, and keeps it until its input ends or it is killed.

use std::io::Write as _;

use postbox_test_servers::{Redis, calm_cluster};

fn main() {
    let (cluster, redis) = std::thread::scope(|scope| {
        let redis = scope.spawn(Redis::start);
        (calm_cluster(), redis.join().expect("a server"))
    });
    let mut out = std::io::stdout().lock();
    writeln!(out, "POSTBOX_TEST_REDIS={}", redis.url()).expect("an output");
    writeln!(out, "POSTBOX_TEST_REDIS_CLUSTER={}", cluster.url()).expect("an output");
    out.flush().expect("an output");
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
}
