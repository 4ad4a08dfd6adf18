//! The conformance suite on each backend and on the fake of the test doubles.

use std::sync::Arc;
use std::time::Duration;

use postbox::clock::Clock as _;
use postbox::conformance::Harness;
use postbox::sqlite::{SqliteBackend, Synchronous};
use postbox::testing::{FakeBackend, ManualClock};
use postbox::{Connection, MemoryBackend};

struct Manual {
    connection: Connection,
    clock: ManualClock,
}

impl Manual {
    fn memory() -> Self {
        let clock = ManualClock::new();
        Manual { connection: Connection::new(MemoryBackend::with_clock(Arc::new(clock.clone()))), clock }
    }

    fn fake() -> Self {
        let backend = FakeBackend::new();
        let clock = backend.clock().clone();
        Manual { connection: Connection::new(backend), clock }
    }
}

impl Harness for Manual {
    fn connect(&self) -> Connection {
        self.connection.clone()
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn tick(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_exact(&self) -> bool {
        true
    }
}

/// `memory://` with the system's clock.
struct Real;

impl Harness for Real {
    fn connect(&self) -> Connection {
        postbox::connect("memory://").blocking().unwrap()
    }

    fn advance(&self, by: Duration) {
        let end = postbox::clock::SystemClock.now().after(by);
        while postbox::clock::SystemClock.now() < end {
            std::thread::sleep(postbox::clock::SystemClock.now().until(end));
        }
    }

    fn tick(&self) -> Duration {
        Duration::from_millis(100)
    }
}

mod memory {
    use super::*;

    postbox::conformance_tests!(Manual::memory());

    #[test]
    fn random_operations_do_as_the_ledger() {
        postbox::conformance::property(&Manual::memory(), cases(600));
    }
}

mod fake {
    use super::*;

    postbox::conformance_tests!(Manual::fake());

    #[test]
    fn random_operations_do_as_the_ledger() {
        postbox::conformance::property(&Manual::fake(), 200);
    }
}

mod real_time {
    use super::*;

    postbox::conformance_tests!(Real);

    #[test]
    fn random_operations_do_as_the_ledger() {
        postbox::conformance::property(&Real, 4);
    }
}

/// SQLite with a new file for each case. The test moves the time.
struct File {
    connection: Connection,
    clock: ManualClock,
    _folder: tempfile::TempDir,
}

impl File {
    fn new() -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let path = folder.path().join("cases.db");
        let backend = SqliteBackend::open_with_clock(path, Synchronous::Normal, Arc::new(clock.clone())).unwrap();
        File { connection: Connection::new(backend), clock, _folder: folder }
    }
}

impl Harness for File {
    fn connect(&self) -> Connection {
        self.connection.clone()
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn tick(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_exact(&self) -> bool {
        true
    }
}

mod sqlite {
    use super::*;

    postbox::conformance_tests!(File::new());

    #[test]
    fn random_operations_do_as_the_ledger() {
        postbox::conformance::property(&File::new(), cases(600));
    }
}

/// A new Redis server for each case. Its scripts read the time from a key, which the test moves.
struct MovedTime {
    connection: Connection,
    redis: postbox_test_servers::Redis,
}

impl MovedTime {
    fn new(version: postbox_test_servers::RedisVersion) -> Self {
        let redis = postbox_test_servers::Redis::builder().version(version).start();
        // The time is far behind the server's clock, so the server itself expires no key. Only the scripts remove keys.
        redis.command(&["SET", "postbox:test:time", "8000000000000000"]);
        let client = postbox::redis::client::Client::open(redis.url()).unwrap();
        let backend = postbox::redis::RedisBackend::from_client_with_test_time(client).unwrap();
        MovedTime { connection: Connection::new(backend), redis }
    }
}

impl Harness for MovedTime {
    fn connect(&self) -> Connection {
        self.connection.clone()
    }

    fn advance(&self, by: Duration) {
        self.redis.command(&["INCRBY", "postbox:test:time", &(by.as_micros() * 2).to_string()]);
    }

    fn tick(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// The number of random cases: `POSTBOX_PROPERTY_CASES` or a default.
fn cases(usual: u32) -> u32 {
    std::env::var("POSTBOX_PROPERTY_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

mod redis_moved_time {
    use super::*;

    use postbox_test_servers::RedisVersion;

    #[test]
    fn random_operations_do_as_the_ledger() {
        postbox::conformance::property(&MovedTime::new(RedisVersion::System), cases(300));
    }

    #[test]
    fn random_operations_do_as_the_ledger_on_redis_6() {
        postbox::conformance::property(&MovedTime::new(RedisVersion::Redis62), cases(100));
    }

    #[test]
    fn random_operations_do_as_the_ledger_on_valkey() {
        postbox::conformance::property(&MovedTime::new(RedisVersion::Valkey9), cases(100));
    }
}

/// A server or a cluster that tests share. Each process uses its own prefix.
struct Server(Connection);

impl Server {
    fn at(url: &str) -> Self {
        let connection = postbox::connect(url).blocking().unwrap();
        Server(connection.prefix(format!("conformance-{}", std::process::id())))
    }

    fn standalone() -> Self {
        Self::at(postbox_test_servers::shared_redis())
    }

    fn cluster() -> Self {
        Self::at(postbox_test_servers::shared_cluster())
    }
}

impl Harness for Server {
    fn connect(&self) -> Connection {
        self.0.clone()
    }

    fn advance(&self, by: Duration) {
        Real.advance(by);
    }

    fn tick(&self) -> Duration {
        Duration::from_millis(100)
    }
}

mod redis {
    use super::*;

    postbox::conformance_tests!(Server::standalone());

    #[test]
    fn random_operations_do_as_the_ledger() {
        postbox::conformance::property(&Server::standalone(), 3);
    }
}

/// SQS and DynamoDB on servers that tests share.
struct Aws {
    scratch: crate::aws::Scratch,
    suffix: &'static str,
    /// Whether queue names have a prefix, as they always have on AWS itself.
    has_prefix: bool,
    /// Cases that fail because the server differs from SQS, each with the difference.
    known_failures: &'static [(&'static str, &'static str)],
}

impl Aws {
    fn moto(suffix: &'static str) -> Self {
        let moto = crate::aws::moto();
        let known_failures = match suffix {
            ".fifo" if moto.starts_with("http:") => MOTO_FIFO,
            _ => &[],
        };
        let has_prefix = suffix == ".fifo" || crate::aws::is_aws(&moto);
        let scratch = crate::aws::Scratch::at(&moto, &crate::aws::dynamodb(), has_prefix);
        Aws { scratch, suffix, has_prefix, known_failures }
    }

    fn ministack(suffix: &'static str) -> Self {
        // Use MiniStack's own DynamoDB, so that the suite runs on two implementations.
        let ministack = crate::aws::ministack();
        let scratch = crate::aws::Scratch::at(&ministack, &ministack, false);
        Aws { scratch, suffix, has_prefix: false, known_failures: &[] }
    }
}

const MOTO_FIFO: &[(&str, &str)] = &[(
    "extras::a_deduplication_id_is_one_message_within_the_window",
    "moto gives a duplicate an id of its own, and forgets a deduplication id with its message",
)];

impl Harness for Aws {
    fn connect(&self) -> Connection {
        self.scratch.connection.clone()
    }

    fn advance(&self, by: Duration) {
        Real.advance(by);
    }

    /// SQS has a resolution of one second.
    fn tick(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn suffix(&self) -> &'static str {
        self.suffix
    }

    fn longest_name(&self) -> usize {
        if self.has_prefix { crate::aws::LONGEST_UNDER_PREFIX } else { 80 }
    }

    fn known_failure(&self, case: &str) -> Option<&'static str> {
        self.known_failures.iter().find(|failure| failure.0 == case).map(|failure| failure.1)
    }
}

mod sqs_moto {
    use super::*;

    postbox::conformance_tests!(Aws::moto(""));
}

mod sqs_ministack {
    use super::*;

    postbox::conformance_tests!(Aws::ministack(""));
}

mod sqs_fifo_moto {
    use super::*;

    postbox::conformance_tests!(Aws::moto(".fifo"));
}

mod sqs_fifo_ministack {
    use super::*;

    postbox::conformance_tests!(Aws::ministack(".fifo"));
}

mod redis_cluster {
    use super::*;

    postbox::conformance_tests!(Server::cluster());

    #[test]
    fn random_operations_do_as_the_ledger() {
        postbox::conformance::property(&Server::cluster(), 3);
    }
}
