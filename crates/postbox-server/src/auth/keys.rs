//! Access keys from a TOML file.
//!
//! ```toml
//! [[key]]
//! id = "worker"
//! secret = "a long random text"
//! queues = ["orders-"]            # prefixes of names; all queues if left out
//! rights = ["send", "receive"]    # send, receive, admin; all if left out
//! account = "000000000000"        # the server's account if left out
//! session_token = "…"             # requests must carry it, if given
//! ```

use super::rights::Right;
use crate::error::{ErrorKind, SqsError};
use crate::queue::QueueAddress;
use crate::wire::Action;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use subtle::ConstantTimeEq;

/// A text that is never shown.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on where the texts differ.
    pub(super) fn matches(&self, other: &str) -> bool {
        self.0.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// An access key and what it may do.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessKey {
    /// The access key id, which requests show.
    pub id: String,
    /// The secret access key, which signs them.
    pub secret: Secret,
    /// A session token that requests must carry.
    #[serde(default)]
    pub session_token: Option<Secret>,
    /// The account of its requests.
    #[serde(default)]
    pub account: Option<String>,
    /// Prefixes of the names of queues that it may use.
    #[serde(default = "every_queue")]
    pub queues: Vec<String>,
    /// What it may do with them.
    #[serde(default = "every_right")]
    pub rights: BTreeSet<Right>,
}

fn every_queue() -> Vec<String> {
    vec![String::new()]
}

fn every_right() -> BTreeSet<Right> {
    Right::ALL.into_iter().collect()
}

impl AccessKey {
    /// A key that may do everything with every queue.
    pub fn new(id: impl Into<String>, secret: impl Into<String>) -> Self {
        AccessKey {
            id: id.into(),
            secret: Secret::new(secret),
            session_token: None,
            account: None,
            queues: every_queue(),
            rights: every_right(),
        }
    }

    /// True if the key may use queues of this name at all. Lists leave out the others.
    pub fn sees(&self, queue_name: &str) -> bool {
        self.queues.iter().any(|prefix| prefix == "*" || queue_name.starts_with(prefix.as_str()))
    }

    /// Decides about an action, with the queue that it concerns if it concerns one.
    pub fn authorize(&self, action: Action, queue: Option<&QueueAddress>) -> Result<(), SqsError> {
        let right = Right::of(action);
        let has_right = right.map_or(!self.rights.is_empty(), |right| self.rights.contains(&right));
        if has_right && queue.is_none_or(|queue| self.sees(&queue.name)) {
            return Ok(());
        }
        let account = self.account.as_deref().unwrap_or_default();
        let resource = queue.map_or("*".to_owned(), QueueAddress::arn);
        let message = format!(
            "User: arn:aws:iam::{account}:user/{} is not authorized to perform: sqs:{} on resource: {resource}",
            self.id,
            action.name()
        );
        Err(SqsError::new(ErrorKind::AccessDenied, message))
    }
}

/// The keys of a server, by id.
#[derive(Clone, Debug, Default)]
pub struct AccessKeys {
    keys: HashMap<String, AccessKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<AccessKey>,
}

/// Why a file of keys cannot be used. The message has a line number or an id, and no other content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysError {
    message: String,
}

impl fmt::Display for KeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for KeysError {}

impl KeysError {
    fn new(message: impl Into<String>) -> Self {
        KeysError { message: message.into() }
    }

    /// The text of the parser's error is left out, because it quotes the file.
    fn at(text: &str, error: &toml::de::Error) -> Self {
        let offset = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        KeysError::new(format!("line {line} of the file of access keys is not understood"))
    }
}

impl AccessKeys {
    /// These keys.
    pub fn new(keys: impl IntoIterator<Item = AccessKey>) -> Self {
        AccessKeys { keys: keys.into_iter().map(|key| (key.id.clone(), key)).collect() }
    }

    /// Reads the text of a file of keys.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let file: KeyFile = toml::from_str(text).map_err(|error| KeysError::at(text, &error))?;
        let mut keys = HashMap::new();
        for key in file.key {
            let id = key.id.clone();
            if id.is_empty() || id.contains(['/', ',', ' ']) {
                return Err(KeysError::new("an access key id is empty or contains a slash, a comma or a space"));
            }
            if key.secret.reveal().is_empty() {
                return Err(KeysError::new(format!("the access key {id} has no secret")));
            }
            if keys.insert(id.clone(), key).is_some() {
                return Err(KeysError::new(format!("the access key {id} is there twice")));
            }
        }
        Ok(AccessKeys { keys })
    }

    /// True if there is no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key of this id.
    pub fn get(&self, id: &str) -> Option<&AccessKey> {
        self.keys.get(id)
    }
}
