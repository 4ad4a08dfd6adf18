//! What all handles of one mailbox in this process share: its batchers, its keys, its settings.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use redis::{Value, cmd};

use super::error::RequestError;
use super::message_format::{bytes, integer, list, millis, tag};
use super::redis_client::RedisClient;
use super::requests::{ReceiveOperation, SendOperation, SettleOperation, batcher};
use super::script::Script;
use crate::backend::MailboxSettings;
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::resolver::address::MailboxName;
use crate::runtime::batcher::Batcher;
use crate::runtime::io_thread;

/// The names of all mailboxes.
pub(super) const REGISTRY: &str = "{postbox}:mailboxes";

/// Names the database, once a mailbox in it was compared with another: by this two addresses of one database are known.
pub(super) const IDENTITY: &str = "{postbox}:identity";

/// What all handles of one mailbox in this process share.
pub(super) struct Queue {
    pub(super) client: Arc<RedisClient>,
    pub(super) name: MailboxName,
    pub(super) channel: String,
    pub(super) keys: Vec<String>,
    pub(super) sends: Batcher<SendOperation>,
    /// Sends that wait for replicas, on a connection of their own, so that no other operation waits for them.
    pub(super) durable_sends: Batcher<SendOperation>,
    pub(super) receives: Batcher<ReceiveOperation>,
    pub(super) settlements: Batcher<SettleOperation>,
    /// Of all other operations one is done at a time.
    alone: tokio::sync::Mutex<()>,
    settings: Mutex<Settings>,
}

/// What the handles want of the mailbox.
#[derive(Default)]
struct Settings {
    /// What was said last, of each setting.
    wanted: MailboxSettings,
    /// How often something was said.
    version: u64,
    /// The version that the server has.
    written: u64,
    /// With new settings an operation of any kind makes the mailbox: then it has to be listed.
    is_listed: bool,
}

impl Settings {
    /// As scripts read them: `=` if the server is to take them over, `?` if they are for a mailbox that is made anew.
    fn text(&self) -> String {
        let numbers = [
            ("max_size", self.wanted.max_size.map(|most| most as u64)),
            ("max_deliveries", self.wanted.max_deliveries.map(u64::from)),
            ("window", self.wanted.deduplication_window.map(millis)),
            ("idle", self.wanted.idle_expiry.map(millis)),
        ];
        let mut text = String::from(if self.version > self.written { "=" } else { "?" });
        for (name, value) in numbers {
            text.extend(value.map(|value| format!("{name} {value} ")));
        }
        text
    }
}

impl Queue {
    pub(super) fn new(client: Arc<RedisClient>, name: MailboxName) -> Arc<Self> {
        let tag = tag(&name);
        let names = [
            "meta",
            "pending",
            "invisible",
            "data",
            "delayed",
            "special",
            "expiring",
            "behind",
            "heads",
            "dead",
            "graves",
            "dedup",
            "dedups",
        ];
        Arc::new(Queue {
            channel: format!("{tag}:wake"),
            keys: names.iter().map(|name| format!("{tag}:{name}")).collect(),
            sends: batcher(),
            durable_sends: batcher(),
            receives: batcher(),
            settlements: batcher(),
            alone: tokio::sync::Mutex::default(),
            settings: Mutex::default(),
            name,
            client,
        })
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a handle wants goes with the next operation.
    pub(super) fn configure(&self, settings: &MailboxSettings) {
        if *settings == MailboxSettings::default() {
            return;
        }
        let mut known = self.settings();
        let wanted = &mut known.wanted;
        wanted.max_size = settings.max_size.or(wanted.max_size);
        wanted.max_deliveries = settings.max_deliveries.or(wanted.max_deliveries);
        wanted.deduplication_window = settings.deduplication_window.or(wanted.deduplication_window);
        wanted.idle_expiry = settings.idle_expiry.or(wanted.idle_expiry);
        known.version += 1;
    }

    /// The arguments with which every script begins. The server remembers the last request of each slot, so that it does a
    /// request once that is sent again; at most one of a slot is under way.
    pub(super) fn arguments(&self, slot: &str) -> Vec<Bytes> {
        let token = Bytes::copy_from_slice(&self.client.token());
        let settings = self.settings().text();
        vec![token, settings.into(), self.client.cluster_flag(), format!("op:{}:{slot}", self.client.client_id).into()]
    }

    /// The server has the settings that were sent, unless others were said meanwhile.
    fn settings_are_written(&self, arguments: &[Bytes]) {
        let mut known = self.settings();
        if known.text().as_bytes() == arguments[1] {
            known.written = known.version;
        }
    }

    /// The mailbox has gone, and has to be listed again.
    pub(super) fn is_gone(&self) {
        self.settings().is_listed = false;
    }

    pub(super) async fn run(&self, script: &'static Script, arguments: &[Bytes]) -> Result<Value, Error> {
        let answer =
            self.read(self.client.run(script.call(self.client.time, &self.keys, arguments)).await, arguments)?;
        let is_listed = !arguments[1].starts_with(b"=") || {
            let mut known = self.settings();
            std::mem::replace(&mut known.is_listed, true)
        };
        if !is_listed {
            self.register().await;
        }
        Ok(answer)
    }

    pub(super) fn read<T>(&self, answer: Result<T, RequestError>, arguments: &[Bytes]) -> Result<T, Error> {
        let answer = answer.map_err(|error| self.error(error))?;
        self.settings_are_written(arguments);
        Ok(answer)
    }

    pub(super) fn full(&self) -> Error {
        Error::MailboxFull { mailbox: self.name.to_string(), limit: "the server's maxmemory".into() }
    }

    fn error(&self, error: RequestError) -> Error {
        if error.is_full() {
            return self.full();
        }
        error.into_error(&self.client.address)
    }

    /// Everything that is not gathered.
    pub(super) fn run_alone<T: Send + 'static>(
        self: &Arc<Self>,
        script: &'static Script,
        more: Vec<Bytes>,
        read: impl FnOnce(Value) -> T + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let queue = Arc::clone(self);
        io_thread::ask(async move {
            let _one_at_a_time = queue.alone.lock().await;
            let mut arguments = queue.arguments("other");
            arguments.extend(more);
            Ok(read(queue.run(script, &arguments).await?))
        })
    }

    /// A new mailbox is listed from now on, and a few of those that were idle for too long are not any more. A user that may
    /// not do that is not listed.
    pub(super) async fn register(&self) {
        let _ = self.client.command(cmd("SADD").arg(REGISTRY).arg(self.name.to_string())).await;
        let some = self.client.command(cmd("SRANDMEMBER").arg(REGISTRY).arg(CHECKED)).await;
        for name in list(some.unwrap_or_default()) {
            if let Ok(name) = listed_name(&bytes(name)) {
                let _ = is_listed(&self.client, &name).await;
            }
        }
    }
}

/// Of how many listed mailboxes each new one looks whether they are still there.
const CHECKED: u32 = 4;

/// The mailbox of a name in the list.
pub(super) fn listed_name(name: &[u8]) -> Result<MailboxName, Error> {
    let name = String::from_utf8_lossy(name);
    match name.split_once('/') {
        Some((prefix, name)) => MailboxName::new(name)?.with_prefix(prefix),
        None => MailboxName::new(&name),
    }
}

/// Whether a mailbox of the list exists. One that went by itself, when it was idle, is taken out.
pub(super) async fn is_listed(client: &Arc<RedisClient>, name: &MailboxName) -> Result<bool, RequestError> {
    let exists = async || {
        let exists = client.command(cmd("HEXISTS").arg(format!("{}:meta", tag(name))).arg("made")).await?;
        Ok::<_, RequestError>(integer(&exists) == 1)
    };
    if exists().await? {
        return Ok(true);
    }
    client.command(cmd("SREM").arg(REGISTRY).arg(name.to_string())).await?;
    // It may have been made in between.
    let is_back = exists().await?;
    if is_back {
        client.command(cmd("SADD").arg(REGISTRY).arg(name.to_string())).await?;
    }
    Ok(is_back)
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.client.unsubscribe(self.channel.clone());
    }
}
