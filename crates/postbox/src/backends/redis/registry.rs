//! The set of the names of all mailboxes, by which they are listed.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Value, cmd};

use super::error::RequestError;
use super::message_format::{integer, list, text};
use super::redis_client::RedisClient;
use crate::error::Error;
use crate::resolver::address::MailboxName;

const KEY: &str = "{postbox}:mailboxes";
/// How many names each registration checks.
const CHECKED: u32 = 4;

/// The prefix of all keys of a mailbox: a hash tag, so that all are in one slot. Colons in the
/// mailbox's prefix are encoded, so that no name reaches another prefix. Names have no braces.
pub(super) fn key_prefix(name: &MailboxName) -> String {
    match name.prefix() {
        None => format!("{{queue:{}}}", name.as_str()),
        Some(prefix) => format!("{{queue/{}:{}}}", prefix.replace(':', "%3A"), name.as_str()),
    }
}

/// Adds a mailbox, and removes a few that idle expiry has deleted. The mailbox of a user without
/// the permission is not listed.
pub(super) async fn add(client: &Arc<RedisClient>, name: &MailboxName) {
    let _ = client.command(cmd("SADD").arg(KEY).arg(name.to_string())).await;
    let some = client.command(cmd("SRANDMEMBER").arg(KEY).arg(CHECKED)).await;
    for name in names(some.unwrap_or_default()) {
        let _ = check(client, &name).await;
    }
}

pub(super) async fn remove(client: &Arc<RedisClient>, name: &MailboxName) -> Result<(), RequestError> {
    client.command(cmd("SREM").arg(KEY).arg(name.to_string())).await.map(drop)
}

/// The names of the mailboxes that exist.
pub(super) async fn existing(client: &Arc<RedisClient>) -> Result<Vec<MailboxName>, RequestError> {
    let registered = client.command(cmd("SMEMBERS").arg(KEY)).await?;
    let checks =
        names(registered).map(|name| async { check(client, &name).await.map(|exists| exists.then_some(name)) });
    let checked = join_all(checks).await;
    let mut names = checked.into_iter().filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
    names.sort();
    Ok(names)
}

fn names(set: Value) -> impl Iterator<Item = MailboxName> {
    list(set).into_iter().filter_map(|name| parse(&text(name)).ok())
}

fn parse(name: &str) -> Result<MailboxName, Error> {
    match name.split_once('/') {
        Some((prefix, name)) => MailboxName::new(name)?.with_prefix(prefix),
        None => MailboxName::new(name),
    }
}

/// Returns whether a registered mailbox exists. Idle expiry deletes a mailbox but not its
/// name, so this removes the name.
async fn check(client: &Arc<RedisClient>, name: &MailboxName) -> Result<bool, RequestError> {
    let exists = async || {
        let exists = client.command(cmd("HEXISTS").arg(format!("{}:meta", key_prefix(name))).arg("made")).await?;
        Ok::<_, RequestError>(integer(&exists) == 1)
    };
    if exists().await? {
        return Ok(true);
    }
    remove(client, name).await?;
    // Another client may have created the mailbox in between.
    let is_back = exists().await?;
    if is_back {
        client.command(cmd("SADD").arg(KEY).arg(name.to_string())).await?;
    }
    Ok(is_back)
}
