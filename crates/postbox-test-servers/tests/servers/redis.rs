//! A single Redis server and its options.

use std::process::Command;

use postbox_test_servers::{Certificates, Client, Redis, RedisBuilder, Reply, shared_cluster, shared_redis};

fn error(reply: Reply) -> String {
    match reply {
        Reply::Error(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_answers_on_its_port_and_its_socket() {
    let redis = Redis::start();
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    let mut client = Client::connect(redis.port()).unwrap();
    assert_eq!(client.call(&["SET", "a", "ü\r\n1"]).unwrap(), Reply::Text("OK".into()));
    assert_eq!(redis.command(&["GET", "a"]), "ü\r\n1");
    assert_eq!(client.call(&["GET", "b"]).unwrap(), Reply::Nil);
    assert_eq!(client.call(&["MGET", "a", "b"]).unwrap().to_string(), "ü\r\n1\n(nil)");
    assert_eq!(client.call(&["STRLEN", "a"]).unwrap(), Reply::Integer(5));
    assert!(error(client.call(&["NONSENSE"]).unwrap()).starts_with("ERR unknown command"));
    assert_eq!(redis.connected_clients(), 1);
    assert_eq!(redis.info_field("server", "process_id"), redis.pid().to_string());
}

#[test]
fn a_restart_keeps_the_port_and_durable_data() {
    let (kept, lost) = (Redis::builder().durable().start(), Redis::start());
    for redis in [&kept, &lost] {
        redis.command(&["SET", "a", "1"]);
        redis.configure("maxclients", "77");
        let (port, pid) = (redis.port(), redis.pid());
        redis.kill();
        assert!(!redis.is_running() && redis.pid() == 0);
        assert!(Client::connect(port).is_err());
        redis.restart();
        assert_eq!(redis.port(), port);
        assert_ne!(redis.pid(), pid);
        assert!(Client::connect(port).is_ok());
        assert_eq!(redis.command(&["CONFIG", "GET", "maxclients"]), "maxclients\n77");
    }
    assert_eq!(kept.command(&["GET", "a"]), "1");
    assert_eq!(lost.command(&["GET", "a"]), "(nil)");
    kept.restart();
    assert_eq!(kept.command(&["GET", "a"]), "1");
}

#[test]
fn a_paused_server_answers_after_resume() {
    let redis = Redis::start();
    let mut client = Client::connect(redis.port()).unwrap();
    redis.pause();
    assert!(!redis.is_running());
    client.send(&["INCR", "a"]).unwrap();
    redis.resume();
    assert_eq!(client.receive().unwrap(), Reply::Integer(1));
    assert!(redis.is_running());
    // A paused server can be killed and restarted.
    redis.pause();
    redis.restart();
    assert_eq!(redis.command(&["INCR", "a"]), "1");
}

#[test]
fn passwords_and_users_are_checked() {
    let redis = Redis::builder().password("secret").user("reader", "on >word ~* +@read").start();
    assert_eq!(redis.url(), format!("redis://:secret@127.0.0.1:{}", redis.port()));
    let mut client = Client::connect(redis.port()).unwrap();
    assert!(error(client.call(&["GET", "a"]).unwrap()).starts_with("NOAUTH"));
    assert!(error(client.call(&["AUTH", "wrong"]).unwrap()).starts_with("WRONGPASS"));
    client.call(&["AUTH", "reader", "word"]).unwrap();
    assert_eq!(client.call(&["GET", "a"]).unwrap(), Reply::Nil);
    assert!(error(client.call(&["SET", "a", "1"]).unwrap()).starts_with("NOPERM"));
    let replica = Redis::builder().password("secret").replica_of(&redis).start();
    redis.command(&["SET", "a", "1"]);
    redis.command(&["WAIT", "1", "0"]);
    assert_eq!(replica.command(&["GET", "a"]), "1");
}

#[test]
fn memory_has_a_limit() {
    let redis = Redis::builder().max_memory("2mb", "noeviction").start();
    let full = (0..100).find_map(|key| {
        let reply = redis.try_command(&["SET", &key.to_string(), &"x".repeat(100_000)]).unwrap();
        matches!(reply, Reply::Error(_)).then(|| reply.to_string())
    });
    assert!(full.unwrap().starts_with("OOM"));
}

/// Sends PING over TLS with `redis-cli`.
fn tls_ping(redis: &Redis, host: &str, arguments: &[&std::path::Path]) -> String {
    let flags = ["--cacert", "--cert", "--key"];
    let mut command = Command::new("redis-cli");
    command.args(["-h", host, "-p", &redis.port().to_string(), "--tls"]);
    for (flag, path) in flags.iter().zip(arguments) {
        command.arg(flag).arg(path);
    }
    let output = command.arg("PING").output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn tls_needs_the_right_certificates() {
    let (trusted, others) = (Certificates::generate(), Certificates::generate());
    let redis = Redis::builder().tls(&trusted).start();
    assert_eq!(redis.url(), format!("rediss://127.0.0.1:{}", redis.port()));
    for host in ["127.0.0.1", "localhost"] {
        assert_eq!(tls_ping(&redis, host, &[&trusted.ca()]), "PONG\n");
    }
    assert!(tls_ping(&redis, "127.0.0.1", &[&others.ca()]).contains("certificate verify failed"));
    assert!(Client::connect(redis.port()).unwrap().call(&["PING"]).is_err());
    let strict = Redis::builder().tls(&trusted).client_certificates().start();
    assert_ne!(tls_ping(&strict, "127.0.0.1", &[&trusted.ca()]), "PONG\n");
    let known = [trusted.ca(), trusted.client_certificate(), trusted.client_key()];
    assert_eq!(tls_ping(&strict, "127.0.0.1", &known.each_ref().map(|path| path.as_path())), "PONG\n");
    // The certificate files exist until the server is dropped.
    drop(trusted);
    strict.restart();
}

#[test]
fn a_server_that_cannot_start_shows_its_log() {
    let failure = |builder: RedisBuilder| {
        let panic = std::panic::catch_unwind(|| drop(builder.start())).unwrap_err();
        *panic.downcast::<String>().unwrap()
    };
    let text = failure(Redis::builder().config("no-such-setting", "1"));
    assert!(text.contains("at try 1; its log:") && text.contains("Bad directive"), "{text}");
    // The last `port` line applies, so each try uses the same port, which is taken.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = failure(Redis::builder().config("port", &other.local_addr().unwrap().port().to_string()));
    assert!(text.contains("at try 10; its log:") && text.contains("Address already in use"), "{text}");
}

#[test]
fn the_shared_servers_answer() {
    let port = |url: &str| url.rsplit_once(':').unwrap().1.parse().unwrap();
    assert_eq!(Client::connect(port(shared_redis())).unwrap().call(&["PING"]).unwrap().to_string(), "PONG");
    let hosts = shared_cluster().strip_prefix("redis+cluster://").unwrap();
    assert_eq!(hosts.split(',').count(), 6);
    for host in hosts.split(',') {
        let info = Client::connect(port(host)).unwrap().call(&["CLUSTER", "INFO"]).unwrap().to_string();
        assert!(info.contains("cluster_state:ok"), "{info}");
    }
}
