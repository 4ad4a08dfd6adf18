//! The memory backend with the system's clock: executors, threads, scale, and removal of unused state.

mod drops;
mod threads;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use postbox::operation::UNDECODABLE_DELIVERIES;
use postbox::reply::MemoryReplyStore;
use postbox::reply::ReplyStore;
use postbox::reply::SCAN_LIMIT;
use postbox::testing::ManualClock;
use postbox::*;

async fn run_all_operations(name: &str) {
    let mailbox: Mailbox<String, usize> = postbox::open(format!("memory://{name}")).await.unwrap();
    let id = mailbox.send("plain").attribute("k", "v").await.unwrap();
    let message = mailbox.receive().wait_time(Duration::from_secs(5)).await.unwrap().remove(0);
    assert_eq!(message.id, id);
    message.extend_visibility(Duration::from_secs(60)).await.unwrap();
    message.nack().await.unwrap();
    let again = mailbox.receive().await.unwrap().remove(0);
    assert_eq!(again.delivery_count, 2);
    again.acknowledge().await.unwrap();

    // A delayed message wakes a receiver, and the reply wakes the client.
    let reply = mailbox.send_expecting_reply("later").delay(Duration::from_millis(20)).await.unwrap();
    let worker = mailbox.clone();
    let handled = thread::spawn(move || {
        let message = worker.receive().wait_time(Duration::from_secs(30)).blocking().unwrap().remove(0);
        message.reply(&message.body.len()).blocking().unwrap();
    });
    assert_eq!(reply.wait().timeout(Duration::from_secs(30)).await.unwrap(), 5);
    handled.join().unwrap();
    assert_eq!(mailbox.counts().await.unwrap(), Counts::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_tokio() {
    // `tokio::spawn` needs futures that are `Send + 'static`.
    tokio::spawn(run_all_operations("memory-tokio")).await.unwrap();
}

#[tokio::test]
async fn on_tokio_with_one_thread() {
    run_all_operations("memory-tokio-one").await;
}

#[test]
fn on_smol() {
    smol::block_on(smol::spawn(run_all_operations("memory-smol")));
}

#[test]
fn on_a_plain_thread() {
    postbox_core::wait_for(run_all_operations("memory-thread"));
}

#[test]
fn handles_are_send_and_sync_whatever_the_types_are() {
    fn check<T: Send + Sync + 'static>() {}
    fn check_send<T: Send + 'static>(_: &T) {}
    type NotSend = std::rc::Rc<std::cell::Cell<u32>>;
    check::<Mailbox<NotSend, NotSend, Json>>();
    check::<Reply<NotSend, Json>>();
    check::<Lease<NotSend, Json>>();
    check::<Message<String, NotSend, Json>>();
    check::<Error>();
    let mailbox: Mailbox<String, String> = Connection::new(MemoryBackend::new()).mailbox("types").unwrap();
    check_send(&mailbox.send(&String::new()).into_future());
    check_send(&mailbox.receive().into_future());
    check_send(&mailbox.send_expecting_reply(&String::new()).into_future());
    check_send(&mailbox.reply("x").wait().into_future());
    check_send(&mailbox.stream());
    check_send(&mailbox.counts().into_future());
}

#[test]
fn nothing_happens_before_an_operation_is_awaited() {
    let mailbox: Mailbox<u32, u32> = Connection::new(MemoryBackend::new()).mailbox("lazy").unwrap();
    drop(mailbox.send(&1));
    drop(mailbox.send(&1).into_future());
    drop(mailbox.send_expecting_reply(&1).into_future());
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
    mailbox.send(&1).blocking().unwrap();
    drop(mailbox.purge());
    drop(mailbox.receive().into_future());
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(1, 0, 0, 0));
}

/// The number of threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn ten_thousand_waits_need_no_thread_each() {
    const WAITS: usize = 10_000;
    let connection = Connection::new(MemoryBackend::new());
    let mailbox: Mailbox<u32, u32> = connection.mailbox("many").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut replies = Vec::new();
        for number in 0..WAITS as u32 {
            let reply = mailbox.send_expecting_reply(&number).await.unwrap();
            replies.push(tokio::spawn(async move { reply.wait().await.unwrap() }));
        }
        let receivers: Vec<_> = (0..WAITS)
            .map(|number| {
                let own: Mailbox<u32, u32> = connection.mailbox(&format!("own-{number}")).unwrap();
                tokio::spawn(
                    async move { own.receive().wait_time(Duration::from_secs(600)).await.unwrap().remove(0).body },
                )
            })
            .collect();
        // Let all receivers begin to wait.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert!(threads() <= 8, "{} threads", threads());
        for number in 0..WAITS {
            let own: Mailbox<u32, u32> = connection.mailbox(&format!("own-{number}")).unwrap();
            own.send(&(number as u32)).await.unwrap();
        }
        for (number, receiver) in receivers.into_iter().enumerate() {
            assert_eq!(receiver.await.unwrap(), number as u32);
        }
        let mut answered = 0;
        while answered < WAITS {
            for message in mailbox.receive().max_messages(1000).await.unwrap() {
                message.reply(&(message.body + 1)).await.unwrap();
                answered += 1;
            }
        }
        for (number, reply) in replies.into_iter().enumerate() {
            assert_eq!(reply.await.unwrap(), number as u32 + 1);
        }
    });
}

#[test]
fn parked_receivers_use_no_processor_time() {
    let mailbox: Mailbox<u32, u32> = Connection::new(MemoryBackend::new()).mailbox("parked").unwrap();
    let reply = mailbox.send_expecting_reply(&1).delay(Duration::from_secs(600)).blocking().unwrap();
    let waits: Vec<_> = (0..4)
        .map(|_| {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.receive().wait_time(Duration::from_millis(1500)).blocking().unwrap().len())
        })
        .collect();
    crate::assert_uses_no_processor_time(|| {
        assert!(matches!(reply.wait().timeout(Duration::from_secs(1)).blocking(), Err(Error::ReplyTimeout { .. })));
    });
    waits.into_iter().for_each(|wait| assert_eq!(wait.join().unwrap(), 0));
}

#[test]
fn empty_mailboxes_without_handles_are_removed() {
    let connection = Connection::new(MemoryBackend::new());
    for number in 0..100 {
        let mailbox: Mailbox<u32> = connection.mailbox(&format!("client-{number}")).unwrap();
        mailbox.send(&number).blocking().unwrap();
        mailbox.receive().blocking().unwrap()[0].acknowledge().blocking().unwrap();
    }
    assert!(connection.list().blocking().unwrap().is_empty());
    let kept: Mailbox<u32> = connection.mailbox("kept").unwrap();
    kept.send(&1).blocking().unwrap();
    drop(kept);
    assert_eq!(connection.list().blocking().unwrap().len(), 1, "what is in it is kept");
    let again: Mailbox<u32> = connection.mailbox("kept").unwrap();
    let message = again.receive().blocking().unwrap().remove(0);
    drop(again);
    assert_eq!(connection.list().blocking().unwrap().len(), 1, "a lease is a handle");
    message.acknowledge().blocking().unwrap();
    drop(message);
    assert!(connection.list().blocking().unwrap().is_empty());
}

#[test]
fn an_idle_mailbox_is_removed_with_its_messages() {
    let clock = ManualClock::new();
    let connection = Connection::new(MemoryBackend::with_clock(Arc::new(clock.clone())));
    let expiring = connection.clone().idle_expiry(Duration::from_secs(60));
    let mailbox: Mailbox<u32> = expiring.mailbox("client-7").unwrap();
    mailbox.send(&1).blocking().unwrap();
    drop(mailbox);
    while clock.alarms() == 0 {
        thread::yield_now();
    }
    clock.advance(Duration::from_secs(59));
    // The mailbox is used again before the idle time has passed.
    let mailbox: Mailbox<u32> = connection.mailbox("client-7").unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 1);
    drop(mailbox);
    while clock.alarms() == 0 {
        thread::yield_now();
    }
    clock.advance(Duration::from_secs(60));
    while !connection.list().blocking().unwrap().is_empty() {
        thread::yield_now();
    }
}

/// The idle check runs when the last handle is dropped. The mailbox was used just before, so it is not removed.
#[test]
fn a_mailbox_is_not_idle_when_its_last_handle_is_dropped() {
    for round in 0..4_000 {
        let clock = ManualClock::new();
        let connection = Connection::new(MemoryBackend::with_clock(Arc::new(clock.clone())));
        let mailbox: Mailbox<u32> =
            connection.clone().idle_expiry(Duration::from_secs(60)).mailbox("client-7").unwrap();
        mailbox.send(&1).blocking().unwrap();
        drop(mailbox);
        while clock.alarms() == 0 {
            thread::yield_now();
        }
        let mailbox: Mailbox<u32> = connection.mailbox("client-7").unwrap();
        clock.advance(Duration::from_secs(60));
        // The other thread wakes up after a random delay.
        for _ in 0..round * 4 {
            std::hint::spin_loop();
        }
        drop(mailbox);
        while clock.alarms() == 0 {
            assert_eq!(connection.list().blocking().unwrap().len(), 1);
            thread::yield_now();
        }
    }
}

#[test]
fn expired_replies_are_removed() {
    let clock = ManualClock::new();
    let store = MemoryReplyStore::with_clock(Arc::new(clock.clone()));
    for _ in 0..1000 {
        store.create(ReplyId::new(), Duration::from_secs(1)).blocking().unwrap();
    }
    while clock.alarms() == 0 {
        thread::yield_now();
    }
    clock.advance(Duration::from_secs(120));
    // The replies are removed without a request for them.
    while !store.is_empty() {
        thread::yield_now();
    }
}

#[test]
fn short_lived_replies_are_removed_before_long_lived_ones() {
    let clock = ManualClock::new();
    let store = MemoryReplyStore::with_clock(Arc::new(clock.clone()));
    store.create(ReplyId::new(), Duration::from_secs(86_400)).blocking().unwrap();
    for _ in 0..1000 {
        store.create(ReplyId::new(), Duration::from_secs(1)).blocking().unwrap();
    }
    clock.advance(Duration::from_secs(120));
    while store.len() > 1 {
        thread::yield_now();
    }
    // There is one task and one alarm, although earlier expiries were added several times.
    while clock.alarms() != 1 {
        thread::yield_now();
    }
    clock.advance(Duration::from_secs(2 * 86_400));
    while !store.is_empty() {
        thread::yield_now();
    }
}

#[test]
fn a_mailbox_with_a_delayed_or_leased_message_is_in_use() {
    let clock = ManualClock::new();
    let connection = Connection::new(MemoryBackend::with_clock(Arc::new(clock.clone())));
    let open = || connection.clone().idle_expiry(Duration::from_secs(2)).mailbox::<u32, (), Json>("client").unwrap();
    let exists = || !connection.list().blocking().unwrap().is_empty();
    open().send(&1).delay(Duration::from_secs(5)).blocking().unwrap();
    clock.advance(Duration::from_secs(6));
    let message = open().receive().visibility_timeout(Duration::from_secs(7)).blocking().unwrap().remove(0);
    assert_eq!(message.body, 1);
    drop(message);
    clock.advance(Duration::from_secs(8));
    assert_eq!(open().receive().visibility_timeout(Duration::ZERO).blocking().unwrap().len(), 1);
    // The mailbox is unused and has no delayed or leased message.
    while exists() {
        clock.advance(Duration::from_secs(1));
        thread::yield_now();
    }
}

#[test]
fn test_doubles_inject_the_configured_failures() {
    use postbox::testing::*;
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    // A batch fails in part.
    mailbox.fail_entries([1], Error::connection("entry 1"));
    let sent = mailbox.send_batch(&[1, 2, 3]).blocking().unwrap();
    assert_eq!(sent.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    let messages = mailbox.receive().max_messages(10).blocking().unwrap();
    assert_eq!(messages.iter().map(|message| message.body).collect::<Vec<_>>(), [1, 3]);
    mailbox.fail_entries([0], Error::connection("entry 0"));
    let done = mailbox.acknowledge_batch(&messages).blocking().unwrap();
    assert_eq!(done.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true]);
    messages[0].acknowledge().blocking().unwrap();
    // A message is delivered twice although its first delivery was acknowledged.
    mailbox.deliver_twice(1);
    let id = mailbox.send(&9).attribute("k", "v").blocking().unwrap();
    for _ in 0..2 {
        let message = mailbox.receive().blocking().unwrap().remove(0);
        assert_eq!((&message.id, message.body, message.attributes["k"].as_str()), (&id, 9, "v"));
        message.acknowledge().blocking().unwrap();
    }
    assert!(mailbox.receive().blocking().unwrap().is_empty());
    // A receipt handle has expired.
    mailbox.send(&4).blocking().unwrap();
    let message = mailbox.receive().blocking().unwrap().remove(0);
    assert!(mailbox.expire_handle(&message.receipt_handle) && !mailbox.expire_handle(&message.receipt_handle));
    assert!(matches!(message.acknowledge().blocking(), Err(Error::ReceiptHandleExpired { .. })));
    // The connection fails, also for replies.
    let reply = mailbox.send_expecting_reply(&5).blocking().unwrap();
    mailbox.set_connection_error(Error::connection("Redis down"));
    for broken in [
        mailbox.send(&1).blocking().err(),
        mailbox.receive().blocking().err(),
        mailbox.purge().blocking().err(),
        reply.poll().blocking().err(),
    ] {
        assert_eq!(broken.unwrap().to_string(), "Redis down");
    }
    mailbox.clear_connection_error();
    assert_eq!(reply.poll().blocking().unwrap(), None);

    let null: NullMailbox<u32, u32> = NullMailbox::new();
    let never = null.send_expecting_reply(&1).blocking().unwrap();
    assert_eq!(never.poll().blocking().unwrap(), None);
    assert!(null.receive().wait_time(Duration::from_millis(1)).blocking().unwrap().is_empty());
    let reply = ImmediateReply::new("there".to_string());
    assert!(reply.is_ready().blocking().unwrap());
    assert_eq!(reply.wait().blocking().unwrap(), "there");
    let (request, reply) = MessageBuilder::new(1u32).build_request::<u32>();
    request.reply(&2).blocking().unwrap();
    assert_eq!(reply.wait().blocking().unwrap(), 2);
}

#[test]
fn a_body_that_cannot_be_decoded_becomes_a_dead_letter() {
    // The mailbox has no `max_deliveries`. Messages that cannot be decoded have a limit of their own.
    let mailbox: testing::FakeMailbox<u32> = testing::FakeMailbox::new();
    mailbox.untyped().typed::<String, (), Json>().send("poison").blocking().unwrap();
    for _ in 0..UNDECODABLE_DELIVERIES {
        assert!(mailbox.receive().blocking().is_err());
        mailbox.advance(Duration::from_secs(30));
    }
    assert!(mailbox.receive().blocking().unwrap().is_empty());
    assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), 1);
}

#[test]
fn idle_time_counts_from_the_last_use() {
    let clock = ManualClock::new();
    let connection = Connection::new(MemoryBackend::with_clock(Arc::new(clock.clone())));
    let open = || connection.clone().idle_expiry(Duration::from_secs(60)).mailbox::<u32, (), Json>("client").unwrap();
    open().send(&1).blocking().unwrap();
    let armed = || {
        while clock.alarms() == 0 {
            thread::yield_now();
        }
    };
    armed();
    clock.advance(Duration::from_secs(59));
    // A use restarts the idle time of one minute.
    drop(open());
    armed();
    clock.advance(Duration::from_secs(30));
    armed();
    assert_eq!(open().approximate_count().blocking().unwrap(), 1);
}

#[test]
fn a_mailbox_whose_messages_expire_is_removed() {
    let clock = ManualClock::new();
    let connection = Connection::new(MemoryBackend::with_clock(Arc::new(clock.clone())));
    let mailbox: Mailbox<u32> = connection.mailbox("client").unwrap();
    mailbox.send(&1).deduplication_id("order-7").blocking().unwrap();
    mailbox.receive().blocking().unwrap()[0].acknowledge().blocking().unwrap();
    mailbox.send(&2).expires_in(Duration::from_secs(600)).blocking().unwrap();
    drop(mailbox);
    for _ in 0..2 {
        while clock.alarms() == 0 {
            thread::yield_now();
        }
        clock.advance(Duration::from_secs(300));
    }
    while !connection.list().blocking().unwrap().is_empty() {
        thread::yield_now();
    }
}

#[test]
fn handles_on_different_threads_use_the_same_mailbox() {
    let connection = Connection::new(MemoryBackend::new());
    let keeper: Mailbox<u32> = connection.mailbox("other").unwrap();
    for _ in 0..300 {
        let sent: Vec<_> = thread::scope(|scope| {
            let send = || {
                scope.spawn(|| {
                    for _ in 0..3 {
                        drop(connection.mailbox::<u32, (), Json>("shared").unwrap());
                    }
                    let mailbox: Mailbox<u32> = connection.mailbox("shared").unwrap();
                    mailbox.send(&1).blocking().unwrap();
                    mailbox
                })
            };
            let senders = [send(), send(), send()];
            senders.into_iter().map(|sender| sender.join().unwrap()).collect()
        });
        assert!(sent.iter().all(|mailbox| mailbox.approximate_count().blocking().unwrap() == 3));
        sent[0].purge().blocking().unwrap();
    }
    drop(keeper);
}

#[test]
fn a_receipt_is_refused_by_other_mailboxes() {
    let connection = Connection::new(MemoryBackend::new());
    let [high, low]: [Mailbox<u32>; 2] = ["high", "low"].map(|name| connection.mailbox(name).unwrap());
    high.send(&1).blocking().unwrap();
    low.send(&2).blocking().unwrap();
    let held = high.receive().blocking().unwrap();
    let messages = low.receive().blocking().unwrap();
    let results = high.acknowledge_batch(&messages).blocking().unwrap();
    assert!(matches!(results[0], Err(Error::ReceiptHandleExpired { .. })));
    held[0].acknowledge().blocking().unwrap();
}

#[test]
fn a_duplicate_request_says_so() {
    let mailbox: Mailbox<u32, u32> = Connection::new(MemoryBackend::new()).mailbox("requests").unwrap();
    let ask = || mailbox.send_expecting_reply(&1).deduplication_id("order-7").blocking();
    let reply = ask().unwrap();
    let error = ask().unwrap_err();
    assert!(matches!(error, Error::DuplicateRequest { .. }), "{error:?}");
    mailbox.receive().blocking().unwrap()[0].reply(&2).blocking().unwrap();
    assert_eq!(reply.wait().blocking().unwrap(), 2);
}

#[test]
fn clones_of_a_reply_all_get_the_answer() {
    let mailbox: Mailbox<u32, u32> = Connection::new(MemoryBackend::new()).mailbox("clones").unwrap();
    for round in 0..300 {
        let reply = mailbox.send_expecting_reply(&round).blocking().unwrap();
        let waits: Vec<_> = (0..3)
            .map(|_| {
                let reply = reply.clone();
                thread::spawn(move || reply.wait().blocking())
            })
            .collect();
        mailbox.receive().blocking().unwrap()[0].reply(&(round + 1)).blocking().unwrap();
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap(), round + 1);
        }
    }
}

#[test]
fn a_stream_pauses_between_failures() {
    use futures_core::Stream as _;
    let mailbox: testing::FakeMailbox<u32> = testing::FakeMailbox::new();
    mailbox.set_connection_error(Error::connection("away"));
    let mut stream = std::pin::pin!(mailbox.stream());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let first = stream.as_mut().poll_next(&mut context);
    assert!(matches!(first, std::task::Poll::Ready(Some(Err(Error::Connection { .. })))));
    assert!(stream.as_mut().poll_next(&mut context).is_pending(), "it rests");
    mailbox.advance(Duration::from_secs(1));
    assert!(stream.as_mut().poll_next(&mut context).is_ready());
    let mut wrong = std::pin::pin!(mailbox.stream().max_messages(0));
    assert!(matches!(wrong.as_mut().poll_next(&mut context), std::task::Poll::Ready(Some(Err(_)))));
    mailbox.advance(Duration::from_secs(1));
    assert!(matches!(wrong.as_mut().poll_next(&mut context), std::task::Poll::Ready(None)), "it will not get better");
}

#[test]
fn the_defaults_of_a_mailbox_are_those_of_the_specification() {
    let mailbox: testing::FakeMailbox<u32, u32> = testing::FakeMailbox::new();
    let second = Duration::from_secs(1);
    // A receive does not wait, takes one message, and leases it for 30 s.
    assert!(mailbox.receive().blocking().unwrap().is_empty());
    mailbox.send_batch(&[1, 2]).blocking().unwrap();
    let messages = mailbox.receive().blocking().unwrap();
    assert_eq!(messages.len(), 1);
    mailbox.advance(30 * second - Duration::from_nanos(1));
    assert_eq!(mailbox.counts().blocking().unwrap().in_flight, 1);
    mailbox.advance(Duration::from_nanos(1));
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(2, 0, 0, 0));
    // A nack makes the message visible at once.
    mailbox.receive().blocking().unwrap()[0].nack().blocking().unwrap();
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(2, 0, 0, 0));
    // The default timeout of a reply is 300 s.
    let reply = mailbox.send_expecting_reply(&3).blocking().unwrap();
    mailbox.advance(300 * second - Duration::from_nanos(1));
    assert_eq!(reply.poll().blocking().unwrap(), None);
    mailbox.advance(Duration::from_nanos(1));
    assert!(matches!(reply.poll().blocking(), Err(Error::ReplyExpired { .. })));
    assert_eq!(SCAN_LIMIT, 100);
}

#[test]
fn settings_in_a_uri_are_checked_as_it_is_opened() {
    for (option, limit) in [
        ("max_size=0", "1 to 1099511627776"),
        ("max_size=99999999999999999999", "1 to 1099511627776"),
        ("max_deliveries=1000001", "1 to 1000000"),
        ("deduplication_window=1e19", "0 to 31536000"),
        ("deduplication_window=nan", "0 to 31536000"),
        ("idle_expiry=0", "0.001 to 31536000"),
        ("idle_expiry=1e20", "0.001 to 31536000"),
    ] {
        let (name, value) = option.split_once('=').unwrap();
        let opened = postbox::open::<u32, (), Json>(format!("memory://uri-settings?{option}")).blocking().err();
        let connected = postbox::connect(format!("memory://?{option}")).blocking().err();
        for refused in [opened, connected] {
            match refused.expect(option) {
                Error::InvalidParameter { parameter, value: named, limit: allowed } => {
                    assert_eq!((parameter, named), (name, format!("{value:?}")));
                    assert!(allowed.contains(limit), "{option}: {allowed}");
                }
                other => panic!("{option}: {other:?}"),
            }
        }
    }
}
