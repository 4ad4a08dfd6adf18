//! Differences between the supported servers: Redis 6.2, Redis 7 (the system's) and Valkey 9. The conformance suite has a
//! property test on each of them.

use postbox::{Error, Json};
use postbox_test_servers::{RedisBuilder, RedisVersion};

use super::*;

const VERSIONS: [RedisVersion; 3] = [RedisVersion::Redis62, RedisVersion::System, RedisVersion::Valkey9];

/// Breaks the server and returns the error of a send. The timeout of operations is short.
fn refusal(redis: &Redis, break_it: impl FnOnce(&Redis)) -> Error {
    let uri = format!("{}/jobs?timeout=0.2", redis.url());
    let jobs: Mailbox<u64> = postbox::open::<u64, (), Json>(uri).blocking().unwrap();
    jobs.send(&1).blocking().unwrap();
    break_it(redis);
    let error = jobs.send(&2).blocking().unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert_eq!(jobs.counts().blocking().map(|counts| counts.ready).unwrap_or(1), 1);
    error
}

fn start(version: RedisVersion, change: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Redis {
    change(Redis::builder().version(version)).start()
}

#[test]
fn errors_within_a_script_are_classified() {
    for version in VERSIONS {
        let redis = start(version, |builder| builder);
        let error = refusal(&redis, |redis| drop(redis.command(&["CONFIG", "SET", "maxmemory", "1"])));
        assert!(
            matches!(&error, Error::MailboxFull { limit, .. } if limit.contains("maxmemory")),
            "{version:?}: {error}"
        );

        let redis = start(version, |builder| builder);
        let error = refusal(&redis, |redis| drop(redis.command(&["REPLICAOF", "127.0.0.1", "1"])));
        assert!(error.to_string().contains("is a replica"), "{version:?}: {error}");

        let redis = start(version, |builder| builder);
        let error = refusal(&redis, |redis| drop(redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"])));
        assert!(error.to_string().contains("cannot at the moment"), "{version:?}: {error}");

        // The server cannot write its data file, because a folder has the same name.
        let redis = start(version, |builder| builder);
        let error = refusal(&redis, |redis| {
            std::fs::create_dir_all(redis.folder().join("dump.rdb/in the way")).unwrap();
            redis.command(&["CONFIG", "SET", "save", "3600 1000000"]);
            let _ = redis.try_command(&["BGSAVE"]);
            until("a failed save", || redis.info_field("persistence", "rdb_last_bgsave_status") == "err");
        });
        assert!(error.to_string().contains("cannot at the moment"), "{version:?}: {error}");
    }
}

#[test]
fn a_full_server_lets_replies_be_taken_cancelled_and_deleted() {
    for version in VERSIONS {
        let redis = start(version, |builder| builder);
        let connection = apart(&redis.url());
        let jobs = jobs(&connection);
        let replies: Vec<_> = (0..4)
            .map(|number| {
                let reply = jobs.send_expecting_reply(&number).blocking().unwrap();
                let message = jobs.receive().blocking().unwrap().remove(0);
                if number < 3 {
                    message.reply(&(number * 10)).blocking().unwrap();
                }
                reply
            })
            .collect();
        redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(matches!(jobs.send(&5).blocking(), Err(Error::MailboxFull { .. })), "{version:?}");
        assert_eq!(replies[0].poll().blocking().unwrap(), Some(0), "{version:?}");
        assert_eq!(replies[1].wait().timeout(LONG).blocking().unwrap(), 10, "{version:?}");
        assert!(replies[3].cancel().blocking().unwrap(), "{version:?}");
        let store = connection.reply_store().unwrap();
        assert!(store.delete(replies[2].id().clone()).blocking().unwrap(), "{version:?}");
    }
}

#[test]
fn waits_and_replies_are_woken_on_every_server() {
    for version in VERSIONS {
        let redis = start(version, |builder| builder);
        let (here, there) = (jobs(&apart(&redis.url())), jobs(&apart(&redis.url())));
        let server = std::thread::spawn(move || {
            let message = there.receive().wait_time(LONG).blocking().unwrap().remove(0);
            message.reply(&(message.body + 1)).blocking().unwrap();
        });
        until("a subscription", || {
            let reply = redis.command(&["PUBSUB", "NUMSUB", JOBS_CHANNEL]);
            reply.lines().nth(1) == Some("1")
        });
        let reply = here.send_expecting_reply(&1).blocking().unwrap();
        assert_eq!(reply.wait().timeout(LONG).blocking().unwrap(), 2, "{version:?}");
        server.join().unwrap();
    }
}
