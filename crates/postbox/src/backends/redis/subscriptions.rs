//! Subscriptions to the channels on which scripts publish, and the receivers that wait for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use redis::{PushInfo, PushKind, Value, cmd};

use super::connection::FIRST_ATTEMPT;
use super::redis_client::{Purpose, RedisClient, not_connected};
use super::replies;
use crate::error::Error;
use crate::runtime::waiters::{Waiter, Waiters};
use crate::runtime::{io_thread, lock};

/// The time between two checks of the connection for subscriptions.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Subscriptions {
    /// The channels, and whether the server has confirmed each.
    channels: Mutex<HashMap<String, bool>>,
    /// Held while a channel is subscribed or unsubscribed.
    changing: tokio::sync::Mutex<()>,
    /// By channel, or by channel and reply.
    waiters: Arc<Waiters<String>>,
    /// Whether a task checks the connection.
    is_checked: AtomicBool,
}

impl Subscriptions {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        lock(&self.channels)
    }

    pub(super) fn contains(&self, channel: &str) -> bool {
        self.channels().get(channel).is_some_and(|is_confirmed| *is_confirmed)
    }

    /// The connection is lost, and all subscriptions with it.
    pub(super) fn end_all(&self) {
        self.channels().clear();
        self.waiters.wake_all();
    }
}

impl RedisClient {
    /// Adds a waiter for a channel, or for a reply of a channel (`channel/id`). The connection is checked from now on.
    pub(super) fn add_waiter(self: &Arc<Self>, key: String) -> Waiter<String> {
        let (waiter, _) = self.subscriptions().waiters.add(key);
        if !self.subscriptions().is_checked.swap(true, Ordering::SeqCst) {
            let check = ConnectionCheck { client: Arc::downgrade(self), is_over: false };
            // If the I/O thread cannot be started, the check is dropped.
            let _ = io_thread::spawn(check.run());
        }
        waiter
    }

    /// Subscribes to a channel, unless that is done. What is published there wakes its waiters.
    pub(super) async fn subscribe(self: &Arc<Self>, channel: &str) -> Result<(), Error> {
        if self.subscriptions().contains(channel) {
            return Ok(());
        }
        let subscribed = self
            .retry(Purpose::Subscriptions, false, |connection| {
                let (client, channel) = (Arc::clone(self), channel.to_string());
                async move {
                    let subscriptions = client.subscriptions();
                    let _one_at_a_time = subscriptions.changing.lock().await;
                    if subscriptions.contains(&channel) {
                        return Ok(());
                    }
                    if !client.is_current(connection.id(), Purpose::Subscriptions) {
                        // The connection was lost while this task waited for the lock.
                        return Err(not_connected());
                    }
                    // Inserted before the request, so that the loss of the connection removes it.
                    subscriptions.channels().insert(channel.clone(), false);
                    let result = connection.set_subscribed(&channel, true).await;
                    let mut channels = subscriptions.channels();
                    match (&result, channels.get_mut(&channel)) {
                        (Ok(()), Some(is_confirmed)) => *is_confirmed = true,
                        (Err(_), Some(_)) => drop(channels.remove(&channel)),
                        (_, None) => {}
                    }
                    result
                }
            })
            .await;
        subscribed.map_err(|error| self.error(error))
    }

    /// Ends a subscription in the background, unless a receiver waits for it.
    pub(super) fn unsubscribe(self: &Arc<Self>, channel: String) {
        let Some(connection) = self.current(Purpose::Subscriptions) else { return };
        let client = Arc::clone(self);
        let _ = io_thread::spawn(async move {
            let subscriptions = client.subscriptions();
            let _one_at_a_time = subscriptions.changing.lock().await;
            if subscriptions.waiters.contains(&channel) || subscriptions.channels().remove(&channel).is_none() {
                return;
            }
            let _ = connection.set_subscribed(&channel, false).await;
        });
    }

    /// Handles what the server pushes over the connection for subscriptions.
    pub(super) fn on_push(&self, connection: u64, info: &PushInfo) {
        let subscriptions = self.subscriptions();
        let text = |at: usize| match info.data.get(at) {
            Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            Some(Value::SimpleString(text)) => text.clone(),
            _ => String::new(),
        };
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                let channel = text(0);
                let payload = text(1);
                if channel.ends_with(replies::CHANNEL) {
                    subscriptions.waiters.wake(&format!("{channel}/{payload}"), u64::MAX);
                } else {
                    // 0: the next deadline of all receivers may have changed.
                    let count = payload.parse().ok().filter(|count| *count > 0).unwrap_or(u64::MAX);
                    subscriptions.waiters.wake(&channel, count);
                }
            }
            PushKind::Disconnection => self.connection_lost(connection, Purpose::Subscriptions, false),
            // The slot of the channel has moved to another node. The client library takes this push
            // for the response to the next request, and from then on each response for that to a
            // later request.
            PushKind::SUnsubscribe | PushKind::Unsubscribe if subscriptions.channels().contains_key(&text(0)) => {
                self.connection_lost(connection, Purpose::Subscriptions, true);
            }
            _ => {}
        }
    }
}

/// The task that checks the connection for subscriptions while receivers wait.
struct ConnectionCheck {
    client: Weak<RedisClient>,
    /// Whether the task ended as planned.
    is_over: bool,
}

impl ConnectionCheck {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let Some(client) = self.client.upgrade() else { return };
            let subscriptions = client.subscriptions();
            if subscriptions.waiters.is_empty() {
                subscriptions.is_checked.store(false, Ordering::SeqCst);
                // A receive that began to wait before the store relies on this task.
                if subscriptions.waiters.is_empty() || subscriptions.is_checked.swap(true, Ordering::SeqCst) {
                    self.is_over = true;
                    return;
                }
            }
            let Some(connection) = client.current(Purpose::Subscriptions) else { continue };
            let response = tokio::time::timeout(FIRST_ATTEMPT, connection.request(&cmd("PING"))).await;
            if !matches!(response, Ok(Ok(_))) {
                client.connection_lost(connection.id(), Purpose::Subscriptions, true);
            }
        }
    }
}

impl Drop for ConnectionCheck {
    /// After a panic the next receive that waits starts another task.
    fn drop(&mut self) {
        if let Some(client) = self.client.upgrade().filter(|_| !self.is_over) {
            client.subscriptions().is_checked.store(false, Ordering::SeqCst);
        }
    }
}
