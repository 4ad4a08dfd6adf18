//! Work for servers that is done where the caller is: a request and its answer need not go from thread to thread.
//!
//! That takes a runtime of tokio whose threads run by themselves. Elsewhere, and when such a runtime ends before the work does, it
//! is done on the network's own thread.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::mailbox::operation::{Answer, thread_waits};
use crate::runtime::busy_poll::UnderWay;
use crate::runtime::io_thread;

pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work panicked on somebody's runtime, which may have been built without IO: from then on all of it is done on the network's thread.
static IS_FAR: AtomicBool = AtomicBool::new(false);

/// The runtime on which this thread runs, if work can be done there: not if this is one of its own threads and waits, since what
/// was given to it would wait too.
fn home() -> Option<Handle> {
    if thread_waits() && tokio::task::try_id().is_some() {
        return None;
    }
    let home = Handle::try_current().ok()?;
    (home.runtime_flavor() == RuntimeFlavor::MultiThread && !IS_FAR.load(Ordering::Relaxed)).then_some(home)
}

/// Whether work is done where this thread runs.
pub(crate) fn is_home() -> bool {
    home().is_some()
}

/// Does something, whoever waits for it.
pub(crate) fn spawn(work: Work) {
    match home() {
        Some(home) => drop(home.spawn(Moving(Some(work)))),
        None => spawn_far(work),
    }
}

/// The same, of work that asks since when there was news for it.
pub(crate) fn spawn_listening(work: impl FnOnce(Arc<Heard>) -> Work) {
    spawn(Box::pin(Listening::new(work)));
}

fn spawn_far(work: Work) {
    // Without a thread the work is dropped, and what waits for it fails.
    let _ = io_thread::spawn(async move {
        let _under_way = UnderWay::begin();
        work.await;
    });
}

/// Polls work, which is put back unless it has ended, by a panic perhaps.
fn poll(slot: &mut Option<Work>, context: &mut Context<'_>) {
    let Some(mut work) = slot.take() else { return };
    match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Ready(())) => {}
        Ok(Poll::Pending) => *slot = Some(work),
        Err(_) => IS_FAR.store(true, Ordering::Relaxed),
    }
}

/// Work on somebody's runtime. When that ends, the work moves.
struct Moving(Option<Work>);

impl Future for Moving {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        poll(&mut self.0, context);
        if self.0.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(spawn_far);
    }
}

/// Does something while its result is waited for, by whoever does so, and to its end if he leaves. Nobody else should depend on
/// it: he need not come back soon.
pub(crate) fn own<T: Send + 'static>(work: Work, result: Answer<T>) -> Answer<T> {
    Answer::from_future(Own { result, work: Moving(Some(work)) })
}

/// The same, of work that asks since when there was news for it.
pub(crate) fn own_listening<T: Send + 'static>(work: impl FnOnce(Arc<Heard>) -> Work, result: Answer<T>) -> Answer<T> {
    own(Box::pin(Listening::new(work)), result)
}

/// Dropped in this order: what is done without him is known to be so.
struct Own<T> {
    result: Answer<T>,
    work: Moving,
}

impl<T> Future for Own<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Own { result, work } = &mut *self;
        if work.0.is_some() {
            match home() {
                Some(_) => poll(&mut work.0, context),
                None => work.0.take().into_iter().for_each(spawn_far),
            }
            if work.0.is_some() {
                // Not before: what comes of the work would wake him who does it.
                return Poll::Pending;
            }
        }
        Pin::new(result).poll(context)
    }
}

/// Work, wherever it is done, that knows when there was news for it.
struct Listening {
    work: Work,
    heard: Arc<Heard>,
}

impl Listening {
    fn new(work: impl FnOnce(Arc<Heard>) -> Work) -> Self {
        let heard = Arc::new(Heard::default());
        Listening { work: work(Arc::clone(&heard)), heard }
    }
}

impl Future for Listening {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waker = self.heard.listen(context.waker());
        self.work.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// When there was news for somebody who need not look at once.
#[derive(Default)]
pub(crate) struct Heard(Mutex<News>);

#[derive(Default)]
struct News {
    waker: Option<Waker>,
    /// The first since he began to look.
    next: Option<Instant>,
    /// That for which he looks.
    last: Option<Instant>,
}

impl Heard {
    fn lock(&self) -> MutexGuard<'_, News> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// He looks now, and is to be woken when there is more.
    fn listen(self: &Arc<Self>, waker: &Waker) -> Waker {
        let mut news = self.lock();
        news.last = news.next.take();
        let old = news.waker.replace(waker.clone());
        drop(news);
        drop(old);
        Waker::from(Arc::clone(self))
    }

    /// Since when there may have been what is found now.
    pub(crate) fn since(&self) -> Instant {
        let news = self.lock();
        news.last.or(news.next).unwrap_or_else(Instant::now)
    }
}

impl Wake for Heard {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = {
            let mut news = self.lock();
            news.next.get_or_insert_with(Instant::now);
            news.waker.clone()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use crate::runtime::oneshot::promise;

    /// Who did it.
    fn name() -> String {
        thread::current().name().unwrap_or_default().into()
    }

    /// Work whose result is who did it, when it is told to go on.
    fn slow() -> (tokio::sync::oneshot::Sender<()>, Answer<(ThreadId, String)>) {
        let (sender, told) = tokio::sync::oneshot::channel();
        let (promise, result) = promise(None);
        let work = Box::pin(async move {
            let _ = told.await;
            promise.fulfil(Ok((thread::current().id(), name())));
        });
        (sender, own(work, Answer::from_future(result).map(|done| done.expect("it was done"))))
    }

    /// In this order, since what is true after a panic is so for the whole process.
    #[test]
    fn work_is_done_where_the_caller_is_or_on_the_networks_thread() {
        let here = thread::current().id();
        let (go_on, result) = slow();
        go_on.send(()).unwrap();
        assert_eq!(result.blocking().1, "postbox-network", "nobody's runtime is here");

        let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (go_on, result) = slow();
        go_on.send(()).unwrap();
        assert_eq!(single.block_on(result).1, "postbox-network", "it runs only as long as somebody waits");

        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (go_on, result) = slow();
        go_on.send(()).unwrap();
        assert_eq!(runtime.block_on(result).0, here);

        let (sender, done) = mpsc::channel();
        let (go_on, mut result) = slow();
        runtime.block_on(async {
            assert!(Pin::new(&mut result).poll(&mut Context::from_waker(Waker::noop())).is_pending());
            let sender = sender.clone();
            spawn(Box::pin(async move {
                let () = std::future::poll_fn(|_| match name().as_str() {
                    "postbox-network" => Poll::Ready(()),
                    _ => Poll::Pending,
                })
                .await;
                sender.send(name()).unwrap();
            }));
        });
        drop(runtime);
        assert_eq!(done.recv().unwrap(), "postbox-network", "it has moved");
        go_on.send(()).unwrap();
        assert_eq!(result.blocking().1, "postbox-network");

        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (promise, result) = promise::<()>(None);
        let work = Box::pin(async move {
            let _promise = promise;
            // As a connection does where there is no IO.
            panic!("it cannot be done here");
        });
        let result = runtime.block_on(own(work, Answer::from_future(result)));
        assert!(result.is_err_and(|error| error.is_transient()), "an error, and he goes on");
        let (go_on, result) = slow();
        go_on.send(()).unwrap();
        assert_eq!(runtime.block_on(result).1, "postbox-network");
    }

    #[test]
    fn work_that_has_moved_hears_of_news_too() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let _here = runtime.enter();
        let (first, began) = tokio::sync::oneshot::channel::<()>();
        let (second, went_on) = tokio::sync::oneshot::channel::<()>();
        let (sender, done) = mpsc::channel();
        let (_promise, result) = promise::<()>(None);
        let work = |heard: Arc<Heard>| -> Work {
            Box::pin(async move {
                let _ = began.await;
                sender.send(None).unwrap();
                let _ = went_on.await;
                sender.send(Some(heard.since())).unwrap();
            })
        };
        let mut own = own_listening(work, Answer::from_future(result));
        assert!(Pin::new(&mut own).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        first.send(()).unwrap();
        drop(own);
        assert_eq!(done.recv().unwrap(), None, "it goes on elsewhere");
        // And has come as far as it can: the thread does one thing after the other.
        io_thread::ask(async { Ok(()) }).blocking().unwrap();
        let before = Instant::now();
        second.send(()).unwrap();
        assert!(done.recv().unwrap().unwrap() >= before, "not from when it was heard of something else");
    }

    #[test]
    fn a_task_that_runs_late_knows_when_there_was_news() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let _here = runtime.enter();
        let (answer, came) = tokio::sync::oneshot::channel::<()>();
        let (sender, done) = mpsc::channel();
        let waits = sender.clone();
        spawn_listening(|heard| {
            Box::pin(async move {
                waits.send(None).unwrap();
                let _ = came.await;
                waits.send(Some(heard.since())).unwrap();
            })
        });
        assert_eq!(done.recv().unwrap(), None, "it waits");
        // Its only thread is busy when the answer comes.
        let (go_on, may_go_on) = mpsc::channel::<()>();
        runtime.spawn(async move {
            sender.send(None).unwrap();
            may_go_on.recv().unwrap();
        });
        assert_eq!(done.recv().unwrap(), None);
        answer.send(()).unwrap();
        let after = Instant::now();
        go_on.send(()).unwrap();
        assert!(done.recv().unwrap().unwrap() <= after);
    }

    #[test]
    fn news_is_from_when_there_was_some() {
        let heard = Arc::new(Heard::default());
        let before = Instant::now();
        assert!(heard.since() >= before, "nothing was heard");
        let waker = heard.listen(Waker::noop());
        waker.wake_by_ref();
        let after = Instant::now();
        waker.wake_by_ref();
        assert!(heard.since() <= after, "the first counts");
        let waker = heard.listen(Waker::noop());
        assert!(heard.since() <= after, "he looks because of that");
        let _waker = heard.listen(Waker::noop());
        assert!(heard.since() >= after, "and now because of nothing");
        drop(waker);
    }
}
