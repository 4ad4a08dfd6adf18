//! Starts the servers that tests share, and prints the environment variables that name them and an empty line. The servers
//! run until the standard input ends or this process is killed.

use std::io::Write as _;

use postbox_test_servers::{DynamoDbLocal, Ministack, Moto, Redis, stable_cluster};

fn main() {
    let (cluster, redis, moto, ministack, dynamodb) = std::thread::scope(|scope| {
        let redis = scope.spawn(Redis::start);
        let moto = scope.spawn(Moto::start);
        let ministack = scope.spawn(Ministack::start);
        let dynamodb = scope.spawn(DynamoDbLocal::start);
        let cluster = stable_cluster();
        let join = "a server";
        let aws = (moto.join().expect(join), ministack.join().expect(join), dynamodb.join().expect(join));
        (cluster, redis.join().expect(join), aws.0, aws.1, aws.2)
    });
    let variables = [
        ("REDIS", redis.url()),
        ("REDIS_CLUSTER", cluster.url()),
        ("MOTO", moto.endpoint()),
        ("MINISTACK", ministack.endpoint()),
        ("DYNAMODB", dynamodb.endpoint()),
    ];
    let mut out = std::io::stdout().lock();
    for (name, value) in variables {
        writeln!(out, "POSTBOX_TEST_{name}={value}").expect("an output");
    }
    writeln!(out).and_then(|()| out.flush()).expect("an output");
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
}
