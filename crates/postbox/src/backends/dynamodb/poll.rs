//! Waits for replies: one poll of the table for all waiters.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::format::now;
use super::table::Table;
use crate::mailbox::id::ReplyId;
use crate::runtime::cancellation::unless;
use crate::runtime::io_thread;
use crate::runtime::lock;
use crate::runtime::oneshot;

/// The first and the longest pause between two polls.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));
/// The most entries of one `BatchGetItem`.
const MAX_KEYS: usize = 100;

#[derive(Default)]
pub(super) struct Waiters {
    state: Mutex<State>,
    added: Notify,
}

#[derive(Default)]
struct State {
    waiters: Vec<(ReplyId, oneshot::Sender<bool>)>,
    /// Whether a [`PollTask`] runs.
    is_polled: bool,
}

impl Table {
    /// Waits until an entry is settled.
    pub(super) fn settled(self: &Arc<Self>, id: ReplyId) -> oneshot::Receiver<bool> {
        // With a function for undelivered results, the sender knows when the receiver was dropped.
        let (sender, settled) = oneshot::channel(Some(Box::new(drop)));
        let mut state = lock(&self.waiters.state);
        state.waiters.push((id, sender));
        let is_polled = std::mem::replace(&mut state.is_polled, true);
        drop(state);
        if is_polled {
            self.waiters.added.notify_one();
        } else {
            let task = PollTask { table: Arc::clone(self), is_over: false };
            // Without the I/O thread the task is dropped, and the waiters get an error.
            let _ = io_thread::spawn(task.run());
        }
        settled
    }

    /// Polls the entries that are waited for, until there is no waiter.
    async fn poll_waiters(&self, is_over: &mut bool) {
        let mut pause = PAUSE.0;
        loop {
            #[cfg(test)]
            assert!(!self.address().ends_with(tests::PANICS), "on purpose");
            let waiter_added = self.waiters.added.notified();
            let soonest = tokio::time::Instant::now() + PAUSE.0;
            let ids: Vec<ReplyId> = {
                let mut state = lock(&self.waiters.state);
                state.waiters.retain(|(_, sender)| !sender.is_unwanted());
                if state.waiters.is_empty() {
                    state.is_polled = false;
                    *is_over = true;
                    return;
                }
                let mut ids: Vec<_> = state.waiters.iter().map(|(id, _)| id.clone()).collect();
                ids.sort();
                ids.dedup();
                ids
            };
            let mut next_expiry: Option<u64> = None;
            let mut has_settled = false;
            for ids in ids.chunks(MAX_KEYS) {
                let expiries = self.pending_expiries(ids).await;
                let settled = {
                    let is_settled = |id: &ReplyId| match &expiries {
                        Ok(expiries) => expiries.get(id).is_some_and(Option::is_none),
                        // The waiters of these entries get the error.
                        Err(_) => ids.binary_search(id).is_ok(),
                    };
                    let mut state = lock(&self.waiters.state);
                    let (settled, others): (Vec<_>, _) =
                        std::mem::take(&mut state.waiters).into_iter().partition(|(id, _)| is_settled(id));
                    state.waiters = others;
                    settled
                };
                has_settled |= !settled.is_empty();
                for (_, sender) in settled {
                    sender.send(expiries.as_ref().map(|_| true).map_err(Clone::clone));
                }
                let expiries = expiries.iter().flat_map(HashMap::values).filter_map(|expires| *expires);
                next_expiry = expiries.chain(next_expiry).min();
            }
            pause = if has_settled { PAUSE.0 } else { pause };
            let until_expiry = next_expiry.map(|expires| Duration::from_millis(expires.saturating_sub(now())));
            let sleep = tokio::time::sleep(pause.min(until_expiry.unwrap_or(PAUSE.1)));
            let is_waiter_added = unless(sleep, waiter_added).await.is_some();
            pause = next_pause(pause);
            if is_waiter_added {
                // New waiters are polled for soon, but not more often than in the shortest pause.
                tokio::time::sleep_until(soonest).await;
                pause = PAUSE.0;
            }
        }
    }
}

/// The task that polls for all waiters. If it panics or its thread ends, the waiters get an error.
struct PollTask {
    table: Arc<Table>,
    is_over: bool,
}

impl PollTask {
    async fn run(mut self) {
        self.table.poll_waiters(&mut self.is_over).await;
    }
}

impl Drop for PollTask {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = lock(&self.table.waiters.state);
        state.is_polled = false;
        let abandoned = std::mem::take(&mut state.waiters);
        drop(state);
        // Dropping a sender gives its receiver an error.
        drop(abandoned);
    }
}

/// The pause after a poll that found no settled entry.
fn next_pause(pause: Duration) -> Duration {
    (pause * 3 / 2).min(PAUSE.1)
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::Client;
    use aws_sdk_dynamodb::config::{BehaviorVersion, Config};

    use super::*;
    use crate::error::Error;
    use crate::mailbox::operation::Answer;

    /// The poll task of a table with this name panics.
    pub(super) const PANICS: &str = "panics-on-purpose";

    #[test]
    fn after_a_panic_of_the_poll_task_waits_fail_and_the_next_wait_starts_another_task() {
        let client = Client::from_conf(Config::builder().behavior_version(BehaviorVersion::latest()).build());
        let table = Table::new(client, PANICS.into());
        for _ in 0..2 {
            let settled = Answer::from_future(table.settled(ReplyId::new()));
            assert!(matches!(settled.blocking(), Err(Error::Connection { .. })));
        }
    }

    #[test]
    fn pauses_grow_while_no_entry_is_settled() {
        let mut pauses: Vec<Duration> =
            std::iter::successors(Some(PAUSE.0), |pause| Some(next_pause(*pause))).take(20).collect();
        assert_eq!((pauses[0], pauses[19]), (Duration::from_millis(25), Duration::from_secs(1)));
        assert!(pauses.is_sorted() && pauses.iter().sum::<Duration>() < Duration::from_secs(15));
        pauses.dedup();
        assert!(pauses.len() > 5, "the pause grows in steps: {pauses:?}");
    }
}
