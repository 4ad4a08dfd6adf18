//! The thread on which connections to servers live that are not to end with anybody's executor, one for the whole process.

use std::future::Future;
use std::sync::Mutex;

use tokio::runtime::Handle;

use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::runtime::{background, lock, oneshot};

static THREAD: Mutex<Option<Handle>> = Mutex::new(None);

/// The thread, which is started if there is none yet.
fn thread() -> Result<Handle, Error> {
    let mut thread = lock(&THREAD);
    if let Some(handle) = &*thread {
        return Ok(handle.clone());
    }
    // Its alarms end requests that take too long.
    background::start()?;
    let failed = |error| Error::connection(format!("cannot start the thread for connections to servers: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let builder = std::thread::Builder::new().name("postbox-network".into());
    builder
        .spawn(move || {
            // Dropped before the runtime, whose operations fail then.
            let _ending = Ending;
            runtime.block_on(until_the_end());
        })
        .map_err(failed)?;
    *thread = Some(handle.clone());
    Ok(handle)
}

/// Forgets the thread when it ends, which only a panic can cause. The next operation starts another one.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        *lock(&THREAD) = None;
    }
}

#[cfg(not(test))]
async fn until_the_end() {
    std::future::pending().await
}

#[cfg(test)]
static PANICS: tokio::sync::Notify = tokio::sync::Notify::const_new();

#[cfg(test)]
async fn until_the_end() {
    PANICS.notified().await;
    panic!("on purpose");
}

/// Does something on the thread.
///
/// # Errors
/// If the thread cannot be started. Then nothing is done.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
    thread()?.spawn(future);
    Ok(())
}

/// The same, for an answer. It goes on to its end if nobody waits for that any more.
pub(crate) fn ask<T: Send + 'static>(
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Answer<Result<T, Error>> {
    let (sender, result) = oneshot::channel(None);
    match spawn(async move { sender.send(future.await) }) {
        Ok(()) => Answer::from_future(result),
        Err(error) => Answer::ready(Err(error)),
    }
}

/// The same, until nobody waits for the answer any more. One that is there by then goes to `undelivered`.
#[cfg(feature = "redis")]
pub(crate) fn wait<T: Send + 'static>(
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
    undelivered: Option<crate::runtime::oneshot::Undelivered<T>>,
) -> Answer<Result<T, Error>> {
    struct Ends(tokio::task::AbortHandle);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let thread = match thread() {
        Ok(thread) => thread,
        Err(error) => return Answer::ready(Err(error)),
    };
    let (sender, result) = oneshot::channel(undelivered);
    let ends = Ends(thread.spawn(async move { sender.send(future.await) }).abort_handle());
    Answer::from_future(async move {
        let _ends = ends;
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
