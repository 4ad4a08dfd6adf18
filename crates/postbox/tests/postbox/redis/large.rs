//! Bodies up to the documented limit arrive, also on slow networks and while other receivers wait.

use postbox::Raw;
use postbox_test_servers::{Direction, Proxy};

use super::*;

const MIB: usize = 1 << 20;

type Blobs = Mailbox<Vec<u8>, (), Raw>;

fn blobs(connection: &Connection, name: &str) -> Blobs {
    connection.mailbox(name).unwrap()
}

fn body(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8).collect()
}

/// The server closes a subscribed connection if more than 32 MiB of output wait on it.
#[test]
fn large_answers_arrive_while_another_receiver_waits() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    let waiting = std::thread::spawn({
        let jobs = jobs(&connection);
        move || jobs.receive().wait_time(LONG).blocking().unwrap().remove(0).body
    });
    until("a subscription", || listeners(&redis) == 1);
    let blobs = blobs(&connection, "blobs");
    for sizes in [&[16 * MIB; 3][..], &[40 * MIB]] {
        for size in sizes {
            blobs.send(&body(*size)).blocking().unwrap();
        }
        let messages = blobs.receive().max_messages(3).blocking().unwrap();
        assert_eq!(messages.iter().map(|message| message.body.len()).collect::<Vec<_>>(), sizes);
        assert!(messages.iter().all(|message| message.delivery_count == 1 && message.body == body(message.body.len())));
        for done in blobs.acknowledge_batch(&messages).blocking().unwrap() {
            done.unwrap();
        }
    }
    jobs(&connection).send(&7).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 7);
}

#[test]
fn the_largest_body_arrives_and_a_larger_one_is_refused() {
    let redis = Redis::start();
    let blobs = blobs(&apart(&redis.url()), "blobs");
    let most = blobs.limits().max_message_size.unwrap();
    let error = blobs.send(&body(most + 1)).blocking().unwrap_err();
    assert!(error.to_string().contains(&most.to_string()), "{error}");
    let largest = body(most - 1_000);
    blobs.send(&largest).blocking().unwrap();
    let message = blobs.receive().blocking().unwrap().remove(0);
    assert!(message.body == largest && message.delivery_count == 1);
    message.acknowledge().blocking().unwrap();
}

/// The network transfers 1 MB/s, so each direction takes longer than the first attempt of a small request may take. Other
/// operations share the connection.
#[test]
fn a_body_that_takes_longer_than_one_attempt_arrives_both_ways() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let connection = apart(&proxy.url());
    let (blobs, others) = (blobs(&connection, "blobs"), jobs(&connection));
    others.send(&0).blocking().unwrap();
    let large = body(4 * MIB);
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.delay(direction, Duration::from_millis(65));
        let other = std::thread::spawn({
            let others = others.clone();
            move || others.send(&1).blocking().map(drop)
        });
        match direction {
            Direction::ToServer => drop(blobs.send(&large).blocking().unwrap()),
            _ => {
                let message = blobs.receive().blocking().unwrap().remove(0);
                assert!(message.body == large && message.delivery_count == 1);
            }
        }
        other.join().unwrap().unwrap();
        proxy.delay(direction, Duration::ZERO);
    }
    assert_eq!(others.approximate_count().blocking().unwrap(), 3);
}
