//! The thread on which connections to servers live that are not to end with anybody's executor, one for the whole process.

use std::future::Future;
use std::sync::LazyLock;

use tokio::runtime::Handle;

use crate::error::Error;
use crate::operation::Answer;
use crate::promise::promise;

static THREAD: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("the process can make a runtime");
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("postbox-network".into());
    thread.spawn(move || runtime.block_on(std::future::pending::<()>())).expect("the process can start a thread");
    handle
});

/// Does something on the thread.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    THREAD.spawn(future);
}

/// The same, for an answer. It goes on to its end if nobody waits for that any more.
pub(crate) fn ask<T: Send + 'static>(
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Answer<Result<T, Error>> {
    let (promise, result) = promise(None);
    spawn(async move { promise.fulfil(future.await) });
    Answer::from_future(result)
}

/// The same, until nobody waits for the answer any more. One that is there by then goes to `undelivered`.
#[cfg(feature = "redis")]
pub(crate) fn wait<T: Send + 'static>(
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
    undelivered: Option<crate::promise::Undelivered<T>>,
) -> Answer<Result<T, Error>> {
    struct Ends(tokio::task::AbortHandle);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let (promise, result) = promise(undelivered);
    let ends = Ends(THREAD.spawn(async move { promise.fulfil(future.await) }).abort_handle());
    Answer::from_future(async move {
        let _ends = ends;
        result.await
    })
}
