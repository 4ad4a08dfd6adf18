//! Operations end with errors when their code panics, or a thread cannot be started.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use postbox::operation::Answer;
use postbox::reply::MemoryReplyStore;
use postbox::reply::{ReplyEntry, ReplyStore, ReplyValue, Resolved};
use postbox::*;

const LONG: Duration = Duration::from_secs(3_600);

fn assert_connection<T>(outcome: Result<T, Error>, what: &str) {
    match outcome {
        Err(Error::Connection { message, transient: true, .. }) if message.contains("thread") => {}
        Err(other) => panic!("{what}: {other:?}"),
        Ok(_) => panic!("{what}: it was done"),
    }
}

/// A store whose entries panic when they are consumed.
#[derive(Debug)]
struct Panicking(MemoryReplyStore);

impl ReplyStore for Panicking {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        self.0.create(id, ttl)
    }

    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>> {
        self.0.resolve(id, value)
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.0.cancel(id)
    }

    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.0.get(id)
    }

    fn consume(&self, _: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        Answer::from_future(async { panic!("on purpose") })
    }

    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.0.delete(id)
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        self.0.scan_expired(limit)
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        self.0.cleanup_expired(limit)
    }

    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>> {
        self.0.settled(id, wait)
    }
}

#[test]
fn a_reply_store_that_panics_is_an_error() {
    let store = Arc::new(Panicking(MemoryReplyStore::new()));
    let mailbox: Mailbox<u32, u32> = postbox::open("memory://panicking-replies").replies(store).blocking().unwrap();
    let reply = mailbox.send_expecting_reply(&1).blocking().unwrap();
    for _ in 0..2 {
        assert!(matches!(reply.poll().blocking(), Err(Error::Connection { .. })));
        assert!(matches!(reply.wait().timeout(LONG).blocking(), Err(Error::Connection { .. })));
    }
}

/// Runs only in a child process, in which thread stacks are larger than the address space, so no thread can be started.
#[test]
fn child_without_threads() {
    if std::env::var_os("POSTBOX_TEST_NO_THREADS").is_none() {
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the test itself");
    let mailbox: Mailbox<u32, u32> = postbox::open("memory://no-threads").blocking().unwrap();
    // An operation without a wait needs no thread.
    mailbox.send(&1).blocking().unwrap();
    let message = mailbox.receive().wait_time(LONG).blocking().unwrap().remove(0);
    let kept = message.keep_alive(LONG, LONG);
    assert!(kept.lost().is_cancelled(), "nothing keeps it alive");
    message.acknowledge().blocking().unwrap();
    assert_connection(mailbox.receive().wait_time(LONG).blocking(), "receive");
    let reply = mailbox.send_expecting_reply(&1).blocking().unwrap();
    assert_connection(reply.wait().blocking(), "wait");
    let worker = Worker::new(&mailbox, async |_: u32, _| Ok::<u32, String>(1));
    assert_connection(worker.run().blocking(), "run");
    mailbox.purge().blocking().unwrap();
    let mut stream = mailbox.stream().blocking();
    for _ in 0..2 {
        assert_connection(stream.next().unwrap(), "stream");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}/jobs", folder.path().join("a.db").display());
    for uri in [file.as_str(), "redis://127.0.0.1:1/jobs", "redis+cluster://127.0.0.1:1/jobs", "sqs://eu-west-1/jobs"] {
        for _ in 0..2 {
            assert_connection(postbox::open::<u32, u32, Json>(uri).blocking(), uri);
        }
    }
    println!("to the end");
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "panics::child_without_threads", "--nocapture", "--test-threads=1"])
        .env("POSTBOX_TEST_NO_THREADS", "1")
        .env("RUST_MIN_STACK", (1_u64 << 47).to_string())
        .output()
        .unwrap();
    let shown = format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && shown.contains("to the end"), "{shown}");
}
