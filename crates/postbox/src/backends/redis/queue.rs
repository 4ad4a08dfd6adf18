//! What all handles of one mailbox in this process share: batchers, keys and settings.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use redis::Value;

use super::error::RequestError;
use super::message_format::{flag, millis};
use super::redis_client::RedisClient;
use super::registry::{self, key_prefix};
use super::requests::Batchers;
use super::script::{self, Script};
use crate::backend::MailboxSettings;
use crate::error::Error;
use crate::resolver::address::MailboxName;
use crate::runtime::lock;

/// The kinds of requests. At most one request of a slot is in flight, and the server remembers the
/// last one of each. So a repeated request is executed once.
#[derive(Clone, Copy)]
pub(super) enum Slot {
    Send,
    DurableSend,
    Receive,
    Settle,
    Other,
}

impl Slot {
    /// Part of the stored format.
    fn name(self) -> &'static str {
        match self {
            Slot::Send => "0",
            Slot::DurableSend => "durable",
            Slot::Receive => "1",
            Slot::Settle => "2",
            Slot::Other => "other",
        }
    }
}

/// The keys of a mailbox, in the order in which scripts expect them.
const KEYS: &str = "meta pending invisible data delayed special expiring behind heads dead graves dedup dedups";

pub(super) struct Queue {
    client: Arc<RedisClient>,
    name: MailboxName,
    channel: String,
    keys: Vec<String>,
    batchers: Batchers,
    /// Held during a request of [`Slot::Other`].
    other: tokio::sync::Mutex<()>,
    settings: Mutex<Settings>,
}

/// The settings that the handles of this process have asked for.
#[derive(Default)]
struct Settings {
    /// The newest value of each setting.
    current: MailboxSettings,
    version: u64,
    /// The version that the server has.
    written: u64,
    /// New settings create the mailbox with any operation, which then has to register it.
    is_registered: bool,
}

impl Settings {
    /// The settings for scripts: `=` if the server has to store them, or `?` if they are only for a
    /// new mailbox.
    fn argument(&self) -> String {
        let numbers = [
            ("max_size", self.current.max_size.map(|max| max as u64)),
            ("max_deliveries", self.current.max_deliveries.map(u64::from)),
            ("window", self.current.deduplication_window.map(millis)),
            ("idle", self.current.idle_expiry.map(millis)),
        ];
        let mut text = String::from(if self.version > self.written { "=" } else { "?" });
        for (name, value) in numbers {
            text.extend(value.map(|value| format!("{name} {value} ")));
        }
        text
    }
}

/// The position of the settings among the arguments.
const SETTINGS: usize = 1;

impl Queue {
    pub(super) fn new(client: Arc<RedisClient>, name: MailboxName) -> Arc<Self> {
        let prefix = key_prefix(&name);
        Arc::new(Queue {
            channel: format!("{prefix}:wake"),
            keys: KEYS.split(' ').map(|key| format!("{prefix}:{key}")).collect(),
            batchers: Batchers::new(),
            other: tokio::sync::Mutex::default(),
            settings: Mutex::default(),
            name,
            client,
        })
    }

    pub(super) fn client(&self) -> &Arc<RedisClient> {
        &self.client
    }

    pub(super) fn name(&self) -> &MailboxName {
        &self.name
    }

    /// The channel on which scripts publish the number of messages that became ready.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    pub(super) fn batchers(&self) -> &Batchers {
        &self.batchers
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    /// Sends settings with the next operation.
    pub(super) fn configure(&self, new: &MailboxSettings) {
        if *new == MailboxSettings::default() {
            return;
        }
        let mut settings = self.settings();
        let current = &mut settings.current;
        current.max_size = new.max_size.or(current.max_size);
        current.max_deliveries = new.max_deliveries.or(current.max_deliveries);
        current.deduplication_window = new.deduplication_window.or(current.deduplication_window);
        current.idle_expiry = new.idle_expiry.or(current.idle_expiry);
        settings.version += 1;
    }

    /// The first arguments of a request.
    pub(super) fn arguments(&self, slot: Slot) -> Vec<Bytes> {
        let token = Bytes::copy_from_slice(&self.client.next_token().to_be_bytes());
        let settings = self.settings().argument().into();
        let operation = format!("op:{}:{}", self.client.id(), slot.name()).into();
        let needs_memory = flag(matches!(slot, Slot::Send | Slot::DurableSend));
        vec![token, settings, self.client.cluster_flag(), operation, needs_memory]
    }

    pub(super) async fn run(&self, script: &'static Script, arguments: &[Bytes]) -> Result<Value, Error> {
        let response = self.finish(self.client.run(script, &self.keys, arguments).await, arguments)?;
        if arguments[SETTINGS].starts_with(b"=") {
            let was_registered = std::mem::replace(&mut self.settings().is_registered, true);
            if !was_registered {
                self.register().await;
            }
        }
        Ok(response)
    }

    /// Sends messages, and waits for the replicas if the URI says so. Returns the response of the
    /// script and the number of replicas that have confirmed the messages.
    pub(super) async fn run_send(&self, arguments: &[Bytes]) -> Result<(Value, u32), Error> {
        if self.client.options().min_replicas > 0 {
            self.finish(self.client.run_durably(&script::SEND, &self.keys, arguments).await, arguments)
        } else {
            let response = self.client.run(&script::SEND, &self.keys, arguments).await;
            self.finish(response.map(|response| (response, 0)), arguments)
        }
    }

    fn finish<T>(&self, response: Result<T, RequestError>, arguments: &[Bytes]) -> Result<T, Error> {
        let response = response.map_err(|error| match error.is_full() {
            true => Error::MailboxFull { mailbox: self.name.to_string(), limit: "the server's maxmemory".into() },
            false => self.client.error(error),
        })?;
        let mut settings = self.settings();
        // False if the settings have changed since the request was made.
        if settings.argument().as_bytes() == arguments[SETTINGS] {
            settings.written = settings.version;
        }
        Ok(response)
    }

    /// Runs a script that is not batched.
    pub(super) async fn run_other(&self, script: &'static Script, more: Vec<Bytes>) -> Result<Value, Error> {
        let _one_at_a_time = self.other.lock().await;
        let mut arguments = self.arguments(Slot::Other);
        arguments.extend(more);
        self.run(script, &arguments).await
    }

    /// Lists the mailbox from now on.
    pub(super) async fn register(&self) {
        registry::add(&self.client, &self.name).await;
    }

    /// Lists the mailbox no longer, until an operation creates it again.
    pub(super) async fn unregister(&self) {
        self.settings().is_registered = false;
        let _ = registry::remove(&self.client, &self.name).await;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.client.unsubscribe(self.channel.clone());
    }
}
