//! The I/O thread of the process. All connections to servers live on it, so they do not end with the caller's executor.

use std::future::Future;
use std::sync::Mutex;

use tokio::runtime::Handle;

use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::runtime::{background, lock, oneshot};

static THREAD: Mutex<Option<Handle>> = Mutex::new(None);

/// The runtime of the thread, which is started if it does not run.
fn thread() -> Result<Handle, Error> {
    let mut thread = lock(&THREAD);
    if let Some(handle) = &*thread {
        return Ok(handle.clone());
    }
    // The background thread rings the alarms for the timeouts of requests.
    background::start()?;
    let failed = |error| Error::connection(format!("cannot start the thread for connections to servers: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let builder = std::thread::Builder::new().name("postbox-network".into());
    builder
        .spawn(move || {
            // Dropped before the runtime. The drop of the runtime fails its operations.
            let _ending = Ending;
            runtime.block_on(until_panic());
        })
        .map_err(failed)?;
    *thread = Some(handle.clone());
    Ok(handle)
}

/// Dropped when the thread ends, which only a panic can cause. The next operation starts another thread.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        *lock(&THREAD) = None;
    }
}

#[cfg(not(test))]
async fn until_panic() {
    std::future::pending().await
}

#[cfg(test)]
static PANICS: tokio::sync::Notify = tokio::sync::Notify::const_new();

#[cfg(test)]
async fn until_panic() {
    PANICS.notified().await;
    panic!("on purpose");
}

/// Runs a future on the thread.
///
/// # Errors
/// If the thread cannot be started. The future is dropped then.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
    thread()?.spawn(future);
    Ok(())
}

/// Runs a future on the thread, and answers with its result. The future runs to its end also if the answer is dropped.
pub(crate) fn ask<T: Send + 'static>(
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Answer<Result<T, Error>> {
    let (sender, result) = oneshot::channel(None);
    match spawn(async move { sender.send(future.await) }) {
        Ok(()) => Answer::from_future(result),
        Err(error) => Answer::ready(Err(error)),
    }
}

/// As [`ask`], but if the answer is dropped, the future is dropped too. A result that is there by then goes to
/// `undelivered`.
#[cfg(feature = "redis")]
pub(crate) fn wait<T: Send + 'static>(
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
    undelivered: Option<crate::runtime::oneshot::Undelivered<T>>,
) -> Answer<Result<T, Error>> {
    struct AbortOnDrop(tokio::task::AbortHandle);
    impl Drop for AbortOnDrop {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let thread = match thread() {
        Ok(thread) => thread,
        Err(error) => return Answer::ready(Err(error)),
    };
    let (sender, result) = oneshot::channel(undelivered);
    let abort = AbortOnDrop(thread.spawn(async move { sender.send(future.await) }).abort_handle());
    Answer::from_future(async move {
        let _abort = abort;
        result.await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_fails<T: std::fmt::Debug>(outcome: Result<T, Error>) {
        assert!(matches!(&outcome, Err(error @ Error::Connection { .. }) if error.is_transient()), "{outcome:?}");
    }

    #[test]
    fn a_panic_of_a_task_is_an_error_of_its_operation() {
        assert_fails(ask::<()>(async { panic!("on purpose") }).blocking());
        assert_eq!(ask(async { Ok(1) }).blocking().unwrap(), 1);
    }

    #[test]
    fn a_panic_of_the_thread_ends_what_is_under_way_and_the_next_operation_has_another_thread() {
        for _ in 0..2 {
            let under_way = ask::<()>(std::future::pending());
            PANICS.notify_one();
            assert_fails(under_way.blocking());
            // An operation that still meets the old runtime fails.
            while ask(async { Ok(()) }).blocking().is_err() {
                std::thread::yield_now();
            }
        }
    }
}
