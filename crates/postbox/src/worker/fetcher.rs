//! The part of a loop that receives, as much as there is room for, and listens to what the loop is told.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postbox_core::shared::mailbox::MailboxSignal as _;
use postbox_core::{Mailbox as _, UnboundedMailbox};
use tracing::warn;

use super::engine::Shared;
use super::tally::count;
use super::{Control, LoopEvent};
use crate::error::Error;
use crate::mailbox::codec::{Codec, Decode, Encode};
use crate::mailbox::receive::pause_after;
use crate::runtime::cancellation::{unless, yield_now};
use crate::runtime::clock::Sleep;

/// Why fetching has ended.
pub(super) enum End {
    /// Everything that was fetched is to be handled.
    Done,
    /// What was not started is to be given back.
    Shutdown,
    Failed(Error),
}

pub(super) async fn fetch<T, R, C>(shared: &Arc<Shared<T, R, C>>, control: &UnboundedMailbox<Control>) -> End
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    let (options, core) = (&shared.options, &shared.mailbox.core);
    let capacity = options.concurrency + options.prefetch;
    let mut failures = 0;
    let mut told = None;
    // A batch may have several messages of one group, and handlers that run at once would not keep their order.
    let batch = match core.limits.ordering {
        crate::backend::Ordering::FifoPerGroup if options.concurrency > 1 => 1,
        _ => core.limits.max_batch,
    };
    loop {
        // What was said goes before what there is to do.
        while let Some(control) = told.take().or_else(|| control.dequeue()) {
            if control == Control::Shutdown {
                return End::Shutdown;
            }
            apply(shared, Some(control));
        }
        if shared.buffer.is_suspended() {
            told = control.recv().await.ok();
            continue;
        }
        if options.max_iterations.is_some_and(|most| shared.tally.iterations.load(Ordering::Relaxed) >= most) {
            return End::Done;
        }
        let room = capacity - shared.tally.outstanding.load(Ordering::SeqCst).min(capacity);
        if room == 0 {
            unless(async { told = control.recv().await.ok() }, shared.tally.progress.wait()).await;
            continue;
        }
        let receive = shared
            .mailbox
            .receive()
            .max_messages(room.min(batch))
            .visibility_timeout(options.visibility)
            .wait_time(options.wait);
        let result = unless(async { told = control.recv().await.ok() }, receive.into_future()).await;
        let Some(result) = result else { continue };
        count(&shared.tally.iterations);
        match result {
            Ok(messages) => {
                failures = 0;
                let is_idle = messages.is_empty();
                messages.into_iter().for_each(|message| shared.take_in(message));
                if is_idle && options.wait.is_zero() && options.max_iterations.is_none() {
                    let pause = Sleep::for_(Arc::clone(&core.clock), IDLE);
                    unless(async { told = control.recv().await.ok() }, pause).await;
                }
            }
            Err(Error::Closed { .. }) => return End::Done,
            Err(error @ Error::InvalidParameter { .. }) => return End::Failed(error),
            Err(error) => {
                count(&shared.tally.receive_errors);
                warn!(mailbox = %core.name, %error, "receiving failed; trying again");
                shared.tell(|| LoopEvent::ReceiveFailed { error: error.to_string() });
                // A body that cannot be decoded is leased and away; there may be others at once.
                if !matches!(error, Error::Serialization { .. }) {
                    failures += 1;
                    let pause = Sleep::for_(Arc::clone(&core.clock), pause_after(failures));
                    unless(async { told = control.recv().await.ok() }, pause).await;
                }
            }
        }
        // A backend may answer at once, time after time: handlers and the executor's other tasks have their turn.
        yield_now().await;
    }
}

/// Between two looks of a loop that does not wait.
const IDLE: Duration = Duration::from_millis(10);

pub(super) fn apply<T, R, C>(shared: &Shared<T, R, C>, control: Option<Control>) {
    match control {
        Some(Control::Pause) if !shared.buffer.is_suspended() => shared.buffer.suspend(),
        Some(Control::Resume) => while shared.buffer.resume() {},
        _ => {}
    }
}
