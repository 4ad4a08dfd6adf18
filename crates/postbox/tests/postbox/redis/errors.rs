//! Errors have a readable reason, say whether a retry can succeed, and show no secret.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use postbox::*;
use postbox_test_servers::{Certificates, Redis, RedisCluster};

use super::{apart, jobs, until};

const SECRET: &str = "s3cret-Pa55";

/// The error of opening a mailbox or sending to it.
fn failure(uri: &str) -> Error {
    let opened = postbox::open::<u64, (), Json>(uri).blocking();
    opened.and_then(|jobs| jobs.send(&1).blocking()).expect_err(uri)
}

/// Asserts that a send fails permanently or transiently, that the error contains `words`, and that it shows no secret.
fn assert_fails(uri: &str, is_transient: bool, words: &[&str]) {
    let error = failure(uri);
    let (text, debug) = (error.to_string(), format!("{error:?}"));
    assert_eq!(error.is_transient(), is_transient, "{uri}: {error:?}");
    for word in words {
        assert!(text.contains(word), "{uri}: {word:?} is not in {text:?}");
    }
    assert!(!text.contains(SECRET) && !debug.contains(SECRET), "{debug}");
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
        source = error.source();
    }
}

#[test]
fn a_wrong_user_or_password_is_a_permanent_error() {
    let redis = Redis::builder().password("right").user("reader", "on >read ~* &* +@read +@connection").start();
    let place = |user: &str| format!("redis://{user}127.0.0.1:{}/jobs", redis.port());
    let refused = ["refuses the user or the password", "127.0.0.1"];
    assert_fails(&place(&format!(":{SECRET}@")), false, &refused);
    assert_fails(&place(&format!("nobody:{SECRET}@")), false, &refused);
    assert_fails(&place(""), false, &refused);
    assert_fails(&place("reader:read@"), false, &["does not permit this user"]);
    postbox::open::<u64, (), Json>(place(":right@")).blocking().unwrap().send(&1).blocking().unwrap();
}

#[test]
fn a_user_that_loses_its_permission_gets_an_error() {
    let redis = Redis::builder().user("worker", "on >work ~* &* +@all").start();
    let uri = format!("redis://worker:work@127.0.0.1:{}/jobs", redis.port());
    let jobs: Mailbox<u64> = postbox::open(uri).blocking().unwrap();
    jobs.send(&1).blocking().unwrap();
    redis.command(&["ACL", "SETUSER", "worker", "resetkeys"]);
    let error = jobs.send(&2).blocking().unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("does not permit"), "{error:?}");
    redis.command(&["ACL", "SETUSER", "worker", "allkeys"]);
    jobs.send(&3).blocking().unwrap();
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 2);
}

#[test]
fn a_tls_mismatch_is_a_permanent_error() {
    let (certificates, others) = (Certificates::generate(), Certificates::generate());
    let (tls, plain) = (Redis::builder().tls(&certificates).start(), Redis::start());
    let ca = |certificates: &Certificates| format!("?ca={}", certificates.ca().display());
    let at = |scheme: &str, redis: &Redis| format!("{scheme}://127.0.0.1:{}/jobs", redis.port());
    assert_fails(&format!("{}{}", at("rediss", &tls), ca(&others)), false, &["does not agree on TLS"]);
    assert_fails(&at("rediss", &tls), false, &["does not agree on TLS"]);
    // A server that gets TLS instead of plain text, or plain text instead of TLS, waits for more bytes or closes the connection.
    assert_fails(&format!("{}{}", at("rediss", &plain), ca(&certificates)), true, &["does not answer", "TLS"]);
    let error = failure(&at("redis", &tls));
    assert!(error.to_string().contains("cannot be reached, or does not answer"), "{error}");
    let uri = format!("{}{}", at("rediss", &tls), ca(&certificates));
    postbox::open::<u64, (), Json>(uri).blocking().unwrap().send(&1).blocking().unwrap();
}

#[test]
fn a_full_server_refuses_sends_and_still_delivers() {
    let redis = Redis::builder().max_memory("6mb", "noeviction").start();
    let url = redis.url();
    let texts: Mailbox<String> = apart(&url).mailbox("texts").unwrap();
    let text = "x".repeat(20_000);
    let mut sent = 0;
    let error = loop {
        match texts.send(&text).blocking() {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, Error::MailboxFull { limit, .. } if limit.contains("maxmemory")), "{error:?}");
    assert!(error.is_transient() && sent > 20, "{sent}");
    // Another connection, and one whose mailbox has settings.
    for other in [apart(&url), apart(&url).max_deliveries(7)] {
        let texts: Mailbox<String> = other.mailbox("texts").unwrap();
        assert!(matches!(texts.send(&text).blocking(), Err(Error::MailboxFull { .. })));
        let messages = texts.receive().max_messages(3).blocking().unwrap();
        assert_eq!(messages.len(), 3);
        messages[0].extend_visibility(Duration::from_secs(60)).blocking().unwrap();
        messages[0].nack().blocking().unwrap();
        messages[1].acknowledge().blocking().unwrap();
        messages[2].acknowledge().blocking().unwrap();
        sent -= 2;
        // Send until the freed memory is used again.
        while texts.send(&text).blocking().is_ok() {
            sent += 1;
        }
    }
    let mut got = 0;
    while texts.approximate_count().blocking().unwrap() > 0 {
        let messages = texts.receive().max_messages(10).blocking().unwrap();
        got += messages.len();
        texts.acknowledge_batch(&messages).blocking().unwrap().into_iter().for_each(|done| done.unwrap());
    }
    assert_eq!(got, sent);
    texts.send(&text).blocking().unwrap();
}

#[test]
fn a_server_that_evicts_keys_is_refused_unless_allowed() {
    let redis = Redis::builder().max_memory("50mb", "allkeys-lru").start();
    let uri = format!("{}/jobs", redis.url());
    assert_fails(&uri, false, &["may evict", "noeviction", "allow_eviction=true"]);
    postbox::open::<u64, (), Json>(format!("{uri}?allow_eviction=true"))
        .blocking()
        .unwrap()
        .send(&1)
        .blocking()
        .unwrap();
    redis.configure("maxmemory-policy", "noeviction");
    postbox::open::<u64, (), Json>(uri).blocking().unwrap().send(&1).blocking().unwrap();
}

#[test]
fn an_error_names_a_replica_as_the_cause() {
    let primary = Redis::start();
    let replica = Redis::builder().replica_of(&primary).start();
    assert_fails(&format!("{}/jobs?timeout=0.1", replica.url()), true, &["is a replica", "connect to the primary"]);
}

/// Operations wait until a server that became a replica is a primary again.
#[test]
fn operations_wait_for_a_primary_that_became_a_replica() {
    let redis = Redis::start();
    let jobs = jobs(&apart(&redis.url()));
    jobs.send(&1).blocking().unwrap();
    // The server becomes a replica at once, before it copies any data. Its primary does not exist.
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let sending = std::thread::spawn({
        let jobs = jobs.clone();
        move || jobs.send(&2).blocking()
    });
    until("a refusal", || redis.info("errorstats").contains("READONLY"));
    redis.command(&["REPLICAOF", "NO", "ONE"]);
    sending.join().unwrap().unwrap();
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 2);
}

#[test]
fn operations_wait_for_a_server_that_loads_its_data() {
    let redis = Redis::builder().durable().start();
    let patient = jobs(&apart(&redis.url()));
    let hasty: Mailbox<u64> = postbox::open(format!("{}/jobs?timeout=0.01", redis.url())).blocking().unwrap();
    patient.send(&1).blocking().unwrap();
    // While it loads the append-only file, the server handles clients after every 1 000 commands, which take 100 ms with the
    // delay below.
    redis.command(&["EVAL", "for i = 1, 12000 do redis.call('SET', 'key' .. i, i) end", "0"]);
    redis.configure("key-load-delay", "100");
    redis.kill();
    std::thread::scope(|scope| {
        let restart = scope.spawn(|| redis.restart());
        let mut seen = None;
        while seen.is_none() && !restart.is_finished() {
            if let Err(error) = hasty.send(&2).blocking() {
                assert!(error.is_transient(), "{error:?}");
                seen = Some(error.to_string()).filter(|text| text.contains("loading"));
            }
        }
        assert!(seen.expect("an error").contains("cannot at the moment"));
        assert_eq!(patient.receive().blocking().unwrap()[0].body, 1);
    });
}

#[test]
fn a_single_node_of_a_cluster_is_an_error_with_the_right_scheme() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).start();
    for url in cluster.urls() {
        assert_fails(&format!("{url}/jobs"), false, &["cluster", "redis+cluster://"]);
    }
}

#[test]
fn a_server_that_is_no_cluster_is_refused_as_one() {
    let redis = Redis::start();
    let error = failure(&format!("redis+cluster://127.0.0.1:{}/jobs", redis.port()));
    assert!(error.to_string().contains("cluster"), "{error}");
}

#[test]
fn a_port_without_a_server_is_a_transient_error() {
    let redis = Redis::start();
    let port = redis.port();
    redis.kill();
    for scheme in ["redis", "redis+cluster", "redis+sentinel"] {
        let uri = format!("{scheme}://:{SECRET}@127.0.0.1:{port}/jobs?primary=postbox");
        // The error comes at once, without the timeout.
        let error = postbox::open::<u64, (), Json>(&uri).blocking().expect_err(&uri);
        assert!(error.is_transient(), "{error:?}");
        assert!(error.to_string().contains(&format!("{scheme}://127.0.0.1:{port}")), "{error}");
        assert_fails(&uri, true, &[]);
    }
    let gone = redis.folder().join("nobody");
    assert_fails(&format!("redis+unix://{}/jobs", gone.display()), true, &["nobody"]);
    assert_fails("redis://no-such-host.invalid/jobs", true, &["no-such-host.invalid"]);
}

#[test]
fn an_invalid_uri_is_an_error_that_lists_what_is_allowed() {
    let cases: &[(&str, &[&str])] = &[
        ("redis://h/jobs?db=x", &["db", "\"x\"", "whole number"]),
        ("redis://h/jobs?db=-1", &["db", "\"-1\"", "0 or more"]),
        ("redis://h/jobs?timeout=soon", &["timeout", "\"soon\"", "seconds"]),
        ("redis://h/jobs?timeout=-1", &["timeout", "\"-1\"", "seconds"]),
        ("redis://h/jobs?min_replicas=-1", &["min_replicas", "\"-1\"", "0 or more"]),
        ("redis://h/jobs?timeout=1e19", &["timeout", "\"1e19\"", "seconds", "300"]),
        ("redis://h/jobs?timeout=300.1", &["timeout", "\"300.1\"", "seconds", "300"]),
        ("redis://h/jobs?replica_timeout=x", &["replica_timeout", "\"x\"", "seconds"]),
        ("redis://h/jobs?replica_timeout=0", &["replica_timeout", "\"0\"", "0.001", "300"]),
        ("redis://h/jobs?replica_timeout=3600", &["replica_timeout", "\"3600\"", "300"]),
        ("redis://h/jobs?idle_expiry=1e20", &["idle_expiry", "\"1e20\"", "0.001", "31536000"]),
        ("redis://h/jobs?allow_eviction=maybe", &["allow_eviction", "\"maybe\"", "true or false"]),
        ("redis://h/jobs?tls=1", &["tls", "\"1\"", "true or false"]),
        ("rediss://h/jobs?ca=/no/such/file", &["ca", "/no/such/file", "PEM"]),
        ("rediss://h/jobs?ca=/dev/null", &["ca", "/dev/null", "PEM"]),
        ("redis+cluster://h/jobs?db=1", &["db", "1", "one database"]),
        ("redis+sentinel://h/jobs", &["?primary="]),
        ("redis://a,b/jobs", &["redis+cluster://", "redis+sentinel://"]),
        ("redis://h:x/jobs", &["redis://h:***", "0 to 65535"]),
        ("redis://h:99999/jobs", &["h:99999/jobs", "0 to 65535"]),
        ("redis:///jobs", &["no server", "redis://host:6379/name"]),
        ("redis://:6379/jobs", &["host:port"]),
        ("redis://h/two words", &["mailbox name", "two words", "1 to 80"]),
        ("redis://h/jobs?tiemout=1", &["tiemout", "timeout"]),
        ("redis://h/jobs?max_size=0", &["max_size", "0", "1 to "]),
    ];
    let redis = Redis::start();
    for (uri, words) in cases {
        let uri = uri.replace("://h/", &format!("://:{SECRET}@127.0.0.1:{}/", redis.port()));
        redis.command(&["CONFIG", "SET", "requirepass", SECRET]);
        let error = postbox::open::<u64, (), Json>(&uri).blocking().expect_err(&uri);
        redis_is_open(&redis);
        assert!(!error.is_transient(), "{uri}: {error:?}");
        let (text, debug) = (error.to_string(), format!("{error:?}"));
        for word in words.iter() {
            assert!(text.contains(word), "{uri}: {word:?} is not in {text:?}");
        }
        assert!(!debug.contains(SECRET) && !text.contains(SECRET), "{debug}");
    }
    let error = postbox::open::<u64, (), Json>(format!("{}/", redis.url())).blocking().unwrap_err();
    assert!(error.to_string().contains("no mailbox name"), "{error}");
    let error = postbox::connect(format!("{}/jobs", redis.url())).blocking().unwrap_err();
    assert!(error.to_string().contains("open()"), "{error}");
}

/// Removes the password, so that the server accepts all clients.
fn redis_is_open(redis: &Redis) {
    let mut client = redis.client().unwrap();
    client.call(&["AUTH", SECRET]).unwrap();
    client.call(&["CONFIG", "SET", "requirepass", ""]).unwrap();
}

#[test]
fn a_database_that_the_server_does_not_have_is_refused() {
    let redis = Redis::start();
    assert_fails(&format!("{}/jobs?db=99", redis.url()), false, &["DB index"]);
}

/// A layer that records all events and spans.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl<S: tracing::Subscriber> tracing_subscriber::layer::Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        self.0.lock().unwrap().push_str(&format!("{event:?}\n"));
    }

    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        self.0.lock().unwrap().push_str(&format!("{attributes:?}\n"));
    }
}

#[test]
fn no_secret_of_a_server_is_shown() {
    use tracing_subscriber::layer::SubscriberExt as _;
    let redis = Redis::builder().password(SECRET).start();
    let log = Log::default();
    let shown = tracing::subscriber::with_default(tracing_subscriber::registry().with(log.clone()), || {
        let connection = postbox::connect(redis.url()).blocking().unwrap();
        let open = postbox::open::<u64, u64, Json>(format!("{}/jobs?timeout=0.1", redis.url()));
        let mut shown = format!("{open:?} {connection:?} {:?}", connection.reply_store());
        let jobs = open.blocking().unwrap();
        jobs.send(&1).blocking().unwrap();
        let message = jobs.receive().blocking().unwrap().remove(0);
        shown += &format!("{jobs:?} {:?} {message:?} {:?}", jobs.untyped(), jobs.receive());
        let client = postbox::redis::client::Client::open(redis.url()).unwrap();
        shown += &format!("{:?}", postbox::redis::RedisBackend::from_client(client).unwrap());
        redis.kill();
        let error = jobs.send(&2).blocking().unwrap_err();
        shown += &format!("{error} {error:?} {:?}", std::error::Error::source(&error));
        let error = postbox::connect(redis.url()).blocking().map(|_| ());
        shown + &format!("{error:?}")
    });
    let log = log.0.lock().unwrap().clone();
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(!log.contains(SECRET), "{log}");
}

#[test]
fn a_stored_message_with_a_million_headers_is_not_decoded() {
    let redis = Redis::start();
    let jobs = jobs(&apart(&redis.url()));
    jobs.send(&1).blocking().unwrap();
    const STORE: &str = "redis.call('HSET', KEYS[1], redis.call('HKEYS', KEYS[1])[1], \
                         'PB\\1\\192\\132\\61' .. string.rep('\\0', 2000000))";
    redis.command(&["EVAL", STORE, "1", "{queue:jobs}:data"]);
    let error = jobs.receive().blocking().unwrap_err();
    assert!(matches!(&error, Error::Serialization { reason, .. } if reason.contains("1000000 headers")), "{error}");
}
