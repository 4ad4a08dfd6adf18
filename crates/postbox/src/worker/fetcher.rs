//! The fetcher of a loop: it receives as many messages as the buffer has room for, and obeys the loop's handle.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postbox_core::shared::mailbox::MailboxSignal as _;
use postbox_core::{Mailbox as _, UnboundedMailbox};
use tracing::warn;

use super::engine::Engine;

use super::{Control, LoopEvent};
use crate::error::Error;
use crate::mailbox::codec::{Codec, Decode, Encode};
use crate::mailbox::receive::pause_after;
use crate::runtime::cancellation::{unless, yield_now};
use crate::runtime::clock::Sleep;

/// Why fetching has ended.
pub(super) enum FetchEnd {
    /// All messages that were fetched are to be handled.
    Done,
    /// Messages that no handler has begun are to be given back.
    Shutdown,
    Failed(Error),
}

pub(super) async fn fetch<T, R, C>(engine: &Arc<Engine<T, R, C>>, control: &UnboundedMailbox<Control>) -> FetchEnd
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    let (options, core) = (&engine.options, &engine.mailbox.core);
    let capacity = options.concurrency + options.prefetch;
    let mut failures = 0;
    let mut command = None;
    // A batch may have several messages of one group, whose order concurrent handlers would not keep.
    let batch = match core.limits.ordering {
        crate::backend::Ordering::FifoPerGroup if options.concurrency > 1 => 1,
        _ => core.limits.max_batch,
    };
    loop {
        // Commands go before messages.
        while let Some(control) = command.take().or_else(|| control.dequeue()) {
            if control == Control::Shutdown {
                return FetchEnd::Shutdown;
            }
            apply_command(engine, Some(control));
        }
        if engine.buffer.is_suspended() {
            command = control.recv().await.ok();
            continue;
        }
        if options.max_iterations.is_some_and(|most| engine.stats.report().iterations >= most) {
            return FetchEnd::Done;
        }
        let room = capacity - engine.stats.in_flight.load(Ordering::SeqCst).min(capacity);
        if room == 0 {
            unless(async { command = control.recv().await.ok() }, engine.stats.progress.wait()).await;
            continue;
        }
        let receive = engine
            .mailbox
            .receive()
            .max_messages(room.min(batch))
            .visibility_timeout(options.visibility)
            .wait_time(options.wait);
        let result = unless(async { command = control.recv().await.ok() }, receive.into_future()).await;
        let Some(result) = result else { continue };
        engine.stats.count(|report| &mut report.iterations);
        match result {
            Ok(messages) => {
                failures = 0;
                let is_idle = messages.is_empty();
                messages.into_iter().for_each(|message| engine.accept(message));
                if is_idle && options.wait.is_zero() && options.max_iterations.is_none() {
                    let pause = Sleep::for_(Arc::clone(&core.clock), IDLE_PAUSE);
                    unless(async { command = control.recv().await.ok() }, pause).await;
                }
            }
            Err(Error::Closed { .. }) => return FetchEnd::Done,
            Err(error @ Error::InvalidParameter { .. }) => return FetchEnd::Failed(error),
            Err(error) => {
                engine.stats.count(|report| &mut report.receive_errors);
                warn!(mailbox = %core.name, %error, "receiving failed; trying again");
                engine.publish(|| LoopEvent::ReceiveFailed { error: error.to_string() });
                // The message that cannot be decoded is leased. The next receive may find others at once.
                if !matches!(error, Error::Serialization { .. }) {
                    failures += 1;
                    let pause = Sleep::for_(Arc::clone(&core.clock), pause_after(failures));
                    unless(async { command = control.recv().await.ok() }, pause).await;
                }
            }
        }
        // A backend may answer each time without waiting. Handlers and the executor's other tasks run in between.
        yield_now().await;
    }
}

/// The pause between two receives that do not wait.
const IDLE_PAUSE: Duration = Duration::from_millis(10);

pub(super) fn apply_command<T, R, C>(engine: &Engine<T, R, C>, control: Option<Control>) {
    match control {
        Some(Control::Pause) if !engine.buffer.is_suspended() => engine.buffer.suspend(),
        Some(Control::Resume) => while engine.buffer.resume() {},
        _ => {}
    }
}
