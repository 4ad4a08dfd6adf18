//! Each fault of the TCP proxy.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use postbox_test_servers::{Client, Direction, Proxy, Redis, Reply};

fn start() -> (Redis, Proxy, Client) {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let client = Client::connect(proxy.port()).unwrap();
    (redis, proxy, client)
}

#[test]
fn bytes_are_forwarded_and_counted() {
    let (redis, proxy, mut client) = start();
    let long = "x".repeat(1_000_000);
    assert_eq!(client.call(&["SET", "a", &long]).unwrap().to_string(), "OK");
    assert_eq!(client.call(&["GET", "a"]).unwrap().to_string(), long);
    for _ in 0..10 {
        client.send(&["INCR", "b"]).unwrap();
    }
    for number in 1..=10 {
        assert_eq!(client.receive().unwrap(), Reply::Integer(number));
    }
    let stats = proxy.stats();
    assert_eq!((stats.connections, stats.open, stats.requests, stats.replies, stats.dropped), (1, 1, 12, 12, 0));
    assert!((3..=12).contains(&stats.round_trips), "{stats:?}");
    assert!(stats.bytes_to_server > 1_000_000 && stats.bytes_to_client > 1_000_000, "{stats:?}");
    assert_eq!(redis.connected_clients(), 1);
    drop(client);
    while redis.connected_clients() > 0 || proxy.stats().open > 0 {
        std::thread::yield_now();
    }
    assert_eq!(proxy.stats().requests, 12);
}

#[test]
fn other_protocols_are_forwarded_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap().port());
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    client.write_all(b"\x16\x03\x01 anything").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    server.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"\x16\x03\x01 anything");
    // The client has closed its sending side and still receives.
    server.write_all(b"*1\r\nnothing in particular").unwrap();
    drop(server);
    bytes.clear();
    client.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"*1\r\nnothing in particular");
}

#[test]
fn a_stalled_direction_holds_bytes() {
    let (redis, proxy, mut client) = start();
    client.call(&["PING"]).unwrap();
    proxy.stall(Direction::ToServer);
    client.send(&["INCR", "a"]).unwrap();
    // The request is held, so a command on another connection has its effect first.
    assert_eq!(redis.command(&["INCR", "a"]), "1");
    proxy.resume();
    assert_eq!(client.receive().unwrap(), Reply::Integer(2));

    proxy.stall(Direction::ToClient);
    client.send(&["INCR", "a"]).unwrap();
    while redis.command(&["GET", "a"]) != "3" {
        std::thread::yield_now();
    }
    assert_eq!(proxy.stats().bytes_to_client, "+PONG\r\n:2\r\n".len());
    proxy.resume();
    assert_eq!(client.receive().unwrap(), Reply::Integer(3));

    // Held bytes are lost with a connection that is cut.
    proxy.stall(Direction::Both);
    client.send(&["INCR", "a"]).unwrap();
    proxy.cut();
    assert!(client.receive().is_err());
    proxy.resume();
    assert_eq!(redis.command(&["GET", "a"]), "3");
}

#[test]
fn bytes_are_delayed() {
    let (_redis, proxy, mut client) = start();
    let delay = Duration::from_millis(50);
    for (direction, least) in [(Direction::ToServer, delay), (Direction::ToClient, delay), (Direction::Both, delay * 2)]
    {
        proxy.delay(direction, delay);
        let start = Instant::now();
        client.call(&["PING"]).unwrap();
        assert!(start.elapsed() >= least);
        proxy.delay(direction, Duration::ZERO);
    }
}

#[test]
fn connections_are_cut_and_refused() {
    let (_redis, proxy, mut client) = start();
    client.call(&["PING"]).unwrap();
    proxy.cut();
    assert!(client.call(&["PING"]).is_err());
    // This also closes a connection that the proxy has not accepted yet.
    let mut client = Client::connect(proxy.port()).unwrap();
    proxy.cut();
    assert!(client.call(&["PING"]).is_err());
    let mut client = Client::connect(proxy.port()).unwrap();
    proxy.refuse();
    for _ in 0..3 {
        let refused = Client::connect(proxy.port()).err().unwrap();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    assert_eq!(client.call(&["PING"]).unwrap().to_string(), "PONG");
    proxy.accept();
    assert_eq!(Client::connect(proxy.port()).unwrap().call(&["PING"]).unwrap().to_string(), "PONG");
    assert_eq!(proxy.stats().connections, 4);
}

#[test]
fn a_killed_server_closes_the_connection() {
    let (redis, proxy, mut client) = start();
    client.call(&["PING"]).unwrap();
    redis.kill();
    assert!(client.call(&["PING"]).is_err());
    assert!(Client::connect(proxy.port()).unwrap().call(&["PING"]).is_err());
    let other = Redis::start();
    proxy.retarget(other.port());
    assert_eq!(Client::connect(proxy.port()).unwrap().call(&["PING"]).unwrap().to_string(), "PONG");
}

#[test]
fn the_request_of_a_dropped_reply_has_its_effect() {
    let (redis, proxy, mut client) = start();
    proxy.drop_reply("INCR");
    assert_eq!(client.call(&["PING"]).unwrap().to_string(), "PONG");
    assert!(client.call(&["INCR", "a"]).is_err());
    proxy.wait_until_dropped();
    assert_eq!(redis.command(&["GET", "a"]), "1");
    // The fault applies to one reply.
    let mut client = Client::connect(proxy.port()).unwrap();
    assert_eq!(client.call(&["INCR", "a"]).unwrap(), Reply::Integer(2));
    assert_eq!(proxy.stats().dropped, 1);
}

#[test]
fn in_a_pipeline_only_the_dropped_and_later_replies_are_lost() {
    let (redis, proxy, mut client) = start();
    proxy.drop_nth_reply("INCR", 1);
    client.send(&["MGET", "x", "y", "z"]).unwrap();
    client.send(&["INCR", "a"]).unwrap();
    client.send(&["ECHO", "b"]).unwrap();
    client.send(&["INCR", "a"]).unwrap();
    assert_eq!(client.receive().unwrap(), Reply::Array(vec![Reply::Nil; 3]));
    assert_eq!(client.receive().unwrap(), Reply::Integer(1));
    assert_eq!(client.receive().unwrap().to_string(), "b");
    assert!(client.receive().is_err());
    assert_eq!(redis.command(&["GET", "a"]), "2");
}

#[test]
fn a_push_is_not_dropped_in_place_of_the_reply() {
    let (redis, proxy, _client) = start();
    let mut raw = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    raw.write_all(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n").unwrap();
    // The last frame that arrives is the confirmation, which is a push.
    let mut seen = Vec::new();
    while !seen.ends_with(b"$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n") {
        let mut bytes = [0; 1024];
        let length = raw.read(&mut bytes).unwrap();
        seen.extend_from_slice(&bytes[..length]);
    }
    proxy.drop_reply("ECHO");
    proxy.stall(Direction::ToClient);
    redis.command(&["PUBLISH", "c", "news"]);
    raw.write_all(b"*2\r\n$4\r\nECHO\r\n$1\r\nx\r\n").unwrap();
    proxy.resume();
    let mut rest = Vec::new();
    raw.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\nnews\r\n");
    assert_eq!(proxy.stats().dropped, 1);
}

#[test]
fn a_dropped_request_has_no_effect() {
    let (redis, proxy, mut client) = start();
    proxy.drop_request("INCR");
    client.send(&["SET", "a", "7"]).unwrap();
    client.send(&["INCR", "a"]).unwrap();
    while client.receive().is_ok() {}
    proxy.wait_until_dropped();
    assert_eq!(redis.command(&["GET", "a"]), "7");
}
