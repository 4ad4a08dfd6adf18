//! Theoretical limits: minimal scripts for a queue with leases, run by the bare client. They have no receipts, no counts and
//! no waits, do not handle lost replies, and do not deliver a message again that is not acknowledged.

use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use postbox::redis::client::aio::MultiplexedConnection;
use postbox::redis::client::{Client, Script};
use postbox_test_servers::Redis;

use super::queue::{LEASE, Queue};
use crate::memory::body::{Document, Job};

/// A set of scripts. They differ in the batch size, and in the number of commands for a batch.
pub(crate) trait Style: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    /// KEYS: pending (list), data (hash). ARGV: id and body of each.
    const SEND: &'static str;
    /// KEYS: pending, data, invisible (sorted set). ARGV: the maximum number of messages, the lease in milliseconds. Returns
    /// ids and bodies in turn.
    const RECEIVE: &'static str;
    /// KEYS: invisible, data. ARGV: ids.
    const ACKNOWLEDGE: &'static str;
}

/// Scripts that handle one message.
#[derive(Clone)]
pub(crate) struct One;

impl Style for One {
    const NAME: &'static str = "limit-script";
    const SEND: &'static str = "
        redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
        redis.call('RPUSH', KEYS[1], ARGV[1])";
    const RECEIVE: &'static str = "
        local id = redis.call('LPOP', KEYS[1])
        if not id then return {} end
        local time = redis.call('TIME')
        redis.call('ZADD', KEYS[3], time[1] * 1000 + ARGV[2], id)
        return { id, redis.call('HGET', KEYS[2], id) }";
    const ACKNOWLEDGE: &'static str = "
        redis.call('ZREM', KEYS[1], ARGV[1])
        return redis.call('HDEL', KEYS[2], ARGV[1])";
}

/// Scripts that handle up to ten messages, with one command per message.
#[derive(Clone)]
pub(crate) struct Ten;

impl Style for Ten {
    const NAME: &'static str = "limit-script-10";
    const SEND: &'static str = "
        for i = 1, #ARGV, 2 do
          redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
          redis.call('RPUSH', KEYS[1], ARGV[i])
        end";
    const RECEIVE: &'static str = "
        local time, found = redis.call('TIME'), {}
        for _ = 1, ARGV[1] do
          local id = redis.call('LPOP', KEYS[1])
          if not id then break end
          redis.call('ZADD', KEYS[3], time[1] * 1000 + ARGV[2], id)
          found[#found + 1] = id
          found[#found + 1] = redis.call('HGET', KEYS[2], id)
        end
        return found";
    const ACKNOWLEDGE: &'static str = "
        for i = 1, #ARGV do
          redis.call('ZREM', KEYS[1], ARGV[i])
          redis.call('HDEL', KEYS[2], ARGV[i])
        end
        return #ARGV";
}

/// Scripts that handle up to ten messages, with one variadic command of each kind.
#[derive(Clone)]
pub(crate) struct Variadic;

impl Style for Variadic {
    const NAME: &'static str = "limit-variadic-10";
    const SEND: &'static str = "
        local ids = {}
        for i = 1, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
        redis.call('HSET', KEYS[2], unpack(ARGV))
        redis.call('RPUSH', KEYS[1], unpack(ids))";
    const RECEIVE: &'static str = "
        local ids = redis.call('LPOP', KEYS[1], ARGV[1])
        if not ids then return {} end
        local time, leases, found = redis.call('TIME'), {}, {}
        local till = time[1] * 1000 + ARGV[2]
        for i = 1, #ids do leases[2 * i - 1], leases[2 * i] = till, ids[i] end
        redis.call('ZADD', KEYS[3], unpack(leases))
        local bodies = redis.call('HMGET', KEYS[2], unpack(ids))
        for i = 1, #ids do found[2 * i - 1], found[2 * i] = ids[i], bodies[i] end
        return found";
    const ACKNOWLEDGE: &'static str = "
        redis.call('ZREM', KEYS[1], unpack(ARGV))
        return redis.call('HDEL', KEYS[2], unpack(ARGV))";
}

#[derive(Clone)]
pub(crate) struct Bare<S> {
    connection: MultiplexedConnection,
    shared: Arc<Shared>,
    style: PhantomData<S>,
}

struct Shared {
    pending: String,
    data: String,
    invisible: String,
    send: Script,
    receive: Script,
    acknowledge: Script,
    ids: AtomicU64,
}

/// A connection of the bare client.
pub(crate) async fn connect(server: &Redis) -> MultiplexedConnection {
    let client = Client::open(server.url()).expect("a good address");
    client.get_multiplexed_async_connection().await.expect("connected")
}

impl<S: Style> Queue for Bare<S> {
    const NAME: &'static str = S::NAME;

    async fn open(server: &Redis, name: &str, tasks: usize) -> Vec<Self> {
        let shared = Shared {
            pending: format!("{name}:pending"),
            data: format!("{name}:data"),
            invisible: format!("{name}:invisible"),
            send: Script::new(S::SEND),
            receive: Script::new(S::RECEIVE),
            acknowledge: Script::new(S::ACKNOWLEDGE),
            ids: AtomicU64::new(0),
        };
        vec![Bare { connection: connect(server).await, shared: Arc::new(shared), style: PhantomData }; tasks]
    }

    async fn send(&mut self, jobs: &[Job]) {
        let shared = &self.shared;
        let mut call = shared.send.prepare_invoke();
        call.key(&shared.pending).key(&shared.data);
        for job in jobs {
            // An id of the same length as those of the other systems.
            let id = u128::from(shared.ids.fetch_add(1, Ordering::Relaxed)).to_be_bytes();
            call.arg(&id[..]).arg(serde_json::to_vec(job).expect("it can be written"));
        }
        call.invoke_async::<()>(&mut self.connection).await.expect("sent");
    }

    async fn receive(&mut self, max: usize) -> usize {
        let shared = &self.shared;
        let mut call = shared.receive.prepare_invoke();
        call.key(&shared.pending).key(&shared.data).key(&shared.invisible).arg(max).arg(LEASE.as_millis() as u64);
        let found: Vec<(Vec<u8>, Vec<u8>)> = call.invoke_async(&mut self.connection).await.expect("received");
        if found.is_empty() {
            return 0;
        }
        let mut call = shared.acknowledge.prepare_invoke();
        call.key(&shared.invisible).key(&shared.data);
        for (id, body) in &found {
            black_box(serde_json::from_slice::<Job>(body).expect("it is JSON").number());
            call.arg(id);
        }
        let gone: usize = call.invoke_async(&mut self.connection).await.expect("acknowledged");
        assert_eq!(gone, found.len());
        gone
    }
}
