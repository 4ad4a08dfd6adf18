//! What all handles of one mailbox in this process share: its trays, its keys, its settings.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use redis::{Value, cmd};

use super::entry::{millis, tag};
use super::fault::Fault;
use super::handover::Handover;
use super::link::Link;
use super::load::Task;
use super::script::Script;
use super::tray::Tray;
use crate::address::MailboxName;
use crate::backend::MailboxSettings;
use crate::error::Error;
use crate::network;
use crate::operation::Answer;

/// The names of all mailboxes.
pub(super) const REGISTRY: &str = "{postbox}:mailboxes";

/// Names the database, once a mailbox in it was compared with another: by this two addresses of one database are known.
pub(super) const IDENTITY: &str = "{postbox}:identity";

/// What all handles of one mailbox in this process share.
pub(super) struct Post {
    pub(super) link: Arc<Link>,
    pub(super) name: MailboxName,
    pub(super) channel: String,
    pub(super) keys: Vec<String>,
    pub(super) tray: Tray<Task>,
    /// For sends that wait for replicas, on a connection of their own: nobody waits for them in turn.
    pub(super) durable: Tray<Task>,
    /// The name of the slot of everything else, of which one is done at a time.
    other: tokio::sync::Mutex<Bytes>,
    pub(super) handover: Handover,
    settings: Mutex<Settings>,
    /// For how many requests kinds are not mixed, since it was no plain case the last time.
    apart: AtomicU32,
}

/// After a request of several kinds that the server refuses, so many are of one kind.
const APART: u32 = 64;

/// What the handles want of the mailbox.
#[derive(Default)]
struct Settings {
    text: String,
    is_written: bool,
    /// The mailbox goes when it is idle: whatever makes it again brings them.
    is_fleeting: bool,
    /// With them an operation of any kind makes the mailbox: then it has to be listed.
    is_listed: bool,
}

impl Post {
    pub(super) fn new(link: Arc<Link>, name: MailboxName) -> Arc<Self> {
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
        let slot = |name: &str| Bytes::from(format!("op:{}:{name}", link.client));
        Arc::new(Post {
            channel: format!("{tag}:wake"),
            keys: names.iter().map(|name| format!("{tag}:{name}")).collect(),
            // One at the server and one behind it, while the next one gathers.
            tray: Tray::new([slot("0"), slot("1")]),
            durable: Tray::new([slot("durable")]),
            other: tokio::sync::Mutex::new(slot("other")),
            handover: Handover::new(format!("{tag}:{}:wake", link.client), slot("wait")),
            settings: Mutex::default(),
            apart: AtomicU32::new(0),
            name,
            link,
        })
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a handle wants goes with the next operation.
    pub(super) fn configure(&self, settings: &MailboxSettings) {
        let numbers = [
            ("max_size", settings.max_size.map(|most| most as u64)),
            ("max_deliveries", settings.max_deliveries.map(u64::from)),
            ("window", settings.deduplication_window.map(millis)),
            ("idle", settings.idle_expiry.map(millis)),
        ];
        let mut known = self.settings();
        for (name, value) in numbers {
            let Some(text) = value.map(|value| format!("{name} {value} ")) else { continue };
            if !known.text.contains(&text) {
                known.text.push_str(&text);
            }
            known.is_written = false;
            known.is_fleeting |= name == "idle";
        }
    }

    /// Whether requests may be of several kinds. Settings go with the scripts of one kind, and so does a limit of the size.
    pub(super) fn mixes(&self) -> bool {
        let known = self.settings();
        let has_settings = !known.text.is_empty();
        let is_plain = !has_settings || known.is_written && !known.is_fleeting && !known.text.contains("max_size ");
        is_plain && self.apart.load(Ordering::Relaxed) == 0
    }

    /// The server has refused a request of several kinds, and would do so again.
    pub(super) fn mixes_later(&self) {
        self.apart.store(APART, Ordering::Relaxed);
    }

    /// One more request that is of one kind.
    pub(super) fn mixes_sooner(&self) {
        let apart = self.apart.load(Ordering::Relaxed);
        self.apart.store(apart.saturating_sub(1), Ordering::Relaxed);
    }

    /// The arguments with which every script begins.
    pub(super) async fn arguments(&self, slot: &Bytes) -> Vec<Bytes> {
        let settings = {
            let known = self.settings();
            if known.is_written && !known.is_fleeting { String::new() } else { known.text.clone() }
        };
        let publish = self.link.publish().await;
        let token = Bytes::copy_from_slice(&self.link.token());
        vec![token, settings.into(), Bytes::from_static(publish.as_bytes()), slot.clone()]
    }

    fn settings_are_written(&self, arguments: &[Bytes]) {
        let mut known = self.settings();
        if known.text.as_bytes() == arguments[1] {
            known.is_written = true;
        }
    }

    /// The mailbox has gone, and its settings with it: the next operation brings them again.
    pub(super) fn settings_are_gone(&self) {
        let mut known = self.settings();
        (known.is_written, known.is_listed) = (false, false);
    }

    pub(super) async fn run(&self, script: &'static Script, arguments: &[Bytes]) -> Result<Value, Error> {
        let answer = self.read(self.link.run(script.call(&self.keys, arguments)).await, arguments)?;
        let is_listed = arguments[1].is_empty() || {
            let mut known = self.settings();
            std::mem::replace(&mut known.is_listed, true)
        };
        if !is_listed {
            self.register().await;
        }
        Ok(answer)
    }

    pub(super) fn read<T>(&self, answer: Result<T, Fault>, arguments: &[Bytes]) -> Result<T, Error> {
        let answer = answer.map_err(|fault| self.error(fault))?;
        self.settings_are_written(arguments);
        Ok(answer)
    }

    pub(super) fn full(&self) -> Error {
        Error::MailboxFull { mailbox: self.name.to_string(), limit: "the server's maxmemory".into() }
    }

    fn error(&self, fault: Fault) -> Error {
        if fault.is_full() {
            return self.full();
        }
        fault.into_error(&self.link.place)
    }

    /// Everything that is not gathered.
    pub(super) fn other<T: Send + 'static>(
        self: &Arc<Self>,
        script: &'static Script,
        more: Vec<Bytes>,
        read: impl FnOnce(Value) -> T + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let post = Arc::clone(self);
        network::ask(async move {
            let slot = post.other.lock().await;
            let mut arguments = post.arguments(&slot).await;
            arguments.extend(more);
            Ok(read(post.run(script, &arguments).await?))
        })
    }

    /// A new mailbox is listed from now on. A user that may not do that is not listed.
    pub(super) async fn register(&self) {
        let _ = self.link.command(cmd("SADD").arg(REGISTRY).arg(self.name.to_string())).await;
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.link.hands_over_no_more(&self.handover.channel);
        self.link.unsubscribe(self.channel.clone());
        self.link.unsubscribe(self.handover.channel.clone());
    }
}
