//! Values are dropped while no lock is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use postbox::codec::CodecError;
use postbox::codec::{Codec, Decode, Encode};
use postbox::testing::ManualClock;
use postbox::*;

/// A codec that does not copy bytes.
struct AsIs;

impl Codec for AsIs {
    const CONTENT_TYPE: ContentType = ContentType::Bytes;
}

impl Encode<bytes::Bytes> for AsIs {
    fn encode(value: &bytes::Bytes) -> Result<bytes::Bytes, CodecError> {
        Ok(value.clone())
    }
}

impl Decode<bytes::Bytes> for AsIs {
    fn decode(body: &bytes::Bytes) -> Result<bytes::Bytes, CodecError> {
        Ok(body.clone())
    }
}

type Bodies = Mailbox<bytes::Bytes, (), AsIs>;

/// A body that uses its mailbox when it is dropped, and counts the drop.
struct Nosy(Bodies, Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Nosy {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        let _ = self.0.approximate_count().blocking();
        self.2.fetch_add(1, Ordering::SeqCst);
    }
}

/// Drops bodies in every verb that removes a message. The mailbox holds the last reference to each body.
fn drop_nosy_bodies(length: usize) {
    let clock = ManualClock::new();
    let connection = Connection::new(MemoryBackend::with_clock(Arc::new(clock.clone()))).max_size(2);
    let mailbox: Bodies = connection.mailbox("nosy").unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let body = || bytes::Bytes::from_owner(Nosy(mailbox.clone(), vec![1; length], Arc::clone(&dropped)));
    let draft = || mailbox.send(&body());
    let finish = || {
        let messages = mailbox.receive().max_messages(2).blocking().unwrap();
        let leases: Vec<_> = messages.into_iter().map(|message| message.into_parts().1).collect();
        leases.iter().for_each(|lease| lease.acknowledge().blocking().unwrap());
        leases.len()
    };
    // Messages expire.
    draft().expires_in(Duration::from_secs(1)).blocking().unwrap();
    clock.advance(Duration::from_secs(1));
    // A duplicate, three refused sends, and an acknowledged message.
    draft().deduplication_id("x").blocking().unwrap();
    draft().deduplication_id("x").blocking().unwrap();
    draft().blocking().unwrap();
    assert!(draft().blocking().is_err());
    assert!(draft().delay(Duration::from_secs(1)).blocking().is_err());
    let batch = mailbox.send_batch(&[body()]);
    assert!(batch.blocking().unwrap()[0].is_err());
    assert!(draft().id("no UUID").blocking().is_err());
    assert_eq!(finish(), 2);
    // A cancelled message, a purge, a purged dead letter, and a deleted mailbox.
    let delayed = draft().delay(Duration::from_secs(9)).blocking().unwrap();
    assert!(mailbox.cancel(&delayed).blocking().unwrap());
    draft().blocking().unwrap();
    mailbox.purge().blocking().unwrap();
    draft().blocking().unwrap();
    let (_, lease) = mailbox.receive().blocking().unwrap().remove(0).into_parts();
    lease.dead_letter("to see").blocking().unwrap();
    mailbox.dead_letters().purge().blocking().unwrap();
    draft().blocking().unwrap();
    mailbox.delete().blocking().unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 12);
}

#[test]
fn a_body_may_use_its_mailbox_when_it_is_dropped() {
    [0, 1, 64, 65, 1000].into_iter().for_each(drop_nosy_bodies);
}

/// The same for bodies that another thread sends.
#[test]
fn a_body_of_another_thread_may_use_its_mailbox_when_it_is_dropped() {
    for length in [0, 1, 64, 65, 1000] {
        let mailbox: Bodies = Connection::new(MemoryBackend::new()).mailbox("nosy").unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        assert!(mailbox.receive().blocking().unwrap().is_empty());
        thread::scope(|scope| {
            scope.spawn(|| {
                let body = || bytes::Bytes::from_owner(Nosy(mailbox.clone(), vec![1; length], Arc::clone(&dropped)));
                (0..3).for_each(|_| drop(mailbox.send(&body()).blocking().unwrap()));
                let batch = mailbox.send_batch(&[body(), body()]);
                assert!(batch.blocking().unwrap().iter().all(Result::is_ok));
            });
        });
        let messages = mailbox.receive().max_messages(4).blocking().unwrap();
        let leases: Vec<_> = messages.into_iter().map(|message| message.into_parts().1).collect();
        leases.iter().for_each(|lease| lease.acknowledge().blocking().unwrap());
        let last = mailbox.receive().blocking().unwrap();
        let done = mailbox.acknowledge_batch(&last);
        drop(last);
        assert!(done.blocking().unwrap().iter().all(Result::is_ok));
        assert_eq!((leases.len(), dropped.load(Ordering::SeqCst)), (4, 5));
    }
}
