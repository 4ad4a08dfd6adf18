//! The writer of a file: its connection and its thread. Operations that are submitted at the same time share a
//! transaction, and so one wait for the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use postbox_core::shared::mailbox::QueueError;
use postbox_core::{Mailbox as _, UnboundedMailbox};
use rusqlite::Connection;

use super::clock::FileClock;
use super::error::{from_sqlite, is_busy};
use super::file::LockWait;
use super::mailbox_row::RowCache;
use super::statements::Statements as _;
use super::transaction::{Event, Transaction, Wakeups};
use crate::error::Error;
use crate::mailbox::operation::{Answer, thread_waits};
use crate::runtime::waiters::{Waiter, Waiters};
use crate::runtime::{lock, oneshot, wake_all};

/// How often the file is checked for changes by other processes, while a caller waits for a message or a reply. The
/// interval starts at the minimum after each change and each operation of this process, and doubles up to the maximum. A
/// check takes some 100 µs of processor time, most of it for waking the thread.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(160);
/// The most operations that share a transaction.
const MAX_BATCH: usize = 512;

/// An operation that waits for its transaction.
trait Operation: Send {
    /// Runs the operation. Called again if the transaction was rolled back because of another operation.
    fn run(&mut self, transaction: &mut Transaction<'_>) -> rusqlite::Result<()>;
    /// Sends the result after the commit, or the error of the transaction. Returns the waker of the caller.
    fn complete(self: Box<Self>, outcome: Result<(), Error>) -> Option<Waker>;
    /// When the operation was submitted. The wait for the file's lock is counted from then.
    fn submitted_at(&self) -> Instant;
}

struct Submitted<T, F> {
    submitted_at: Instant,
    act: F,
    value: Option<T>,
    sender: oneshot::Sender<T>,
}

impl<T, F> Operation for Submitted<T, F>
where
    T: Send,
    F: FnMut(&mut Transaction<'_>) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, transaction: &mut Transaction<'_>) -> rusqlite::Result<()> {
        if self.sender.is_unwanted() {
            return Ok(());
        }
        self.value = Some((self.act)(transaction)?);
        Ok(())
    }

    fn complete(self: Box<Self>, outcome: Result<(), Error>) -> Option<Waker> {
        let Submitted { value, sender, .. } = *self;
        let not_done = || Error::connection("the operation was not done");
        sender.put(outcome.and_then(|()| value.ok_or_else(not_done)))
    }

    fn submitted_at(&self) -> Instant {
        self.submitted_at
    }
}

/// The connection, its clock, and the row cache, which the last transaction leaves to the next.
struct File {
    connection: Connection,
    clock: FileClock,
    cache: RowCache,
}

/// Why a transaction was not committed.
enum Failure {
    Sqlite(rusqlite::Error),
    /// An operation panicked, and was rolled back.
    Panic,
}

/// The state that callers and the writer's thread share.
pub(super) struct Writer {
    operations: UnboundedMailbox<Box<dyn Operation>>,
    /// The number of enqueued operations that are not done. A blocking caller does not overtake them.
    enqueued: AtomicUsize,
    file: Mutex<File>,
    /// Whether the last transaction had more than one operation.
    is_shared: AtomicBool,
    /// The callers that wait for messages or replies.
    waiters: Arc<Waiters<Event>>,
    path: PathBuf,
    busy_timeout: Duration,
}

impl Writer {
    /// Starts the thread. It ends when the writer is closed.
    pub(super) fn start(
        path: PathBuf,
        connection: Connection,
        clock: FileClock,
        busy_timeout: Duration,
    ) -> Result<Arc<Self>, Error> {
        let writer = Arc::new(Writer {
            operations: UnboundedMailbox::new(),
            enqueued: AtomicUsize::new(0),
            file: Mutex::new(File { connection, clock, cache: RowCache::default() }),
            is_shared: AtomicBool::new(false),
            waiters: Arc::default(),
            path,
            busy_timeout,
        });
        /// Dropped when the thread ends, also by a panic. Fails the operations that are left.
        struct Ending(Arc<Writer>);
        impl Drop for Ending {
            fn drop(&mut self) {
                self.0.close();
                while let Some(operation) = self.0.operations.dequeue() {
                    drop(operation);
                }
                // Their next attempts fail.
                self.0.waiters.wake_all();
            }
        }
        let ending = Ending(Arc::clone(&writer));
        let thread = std::thread::Builder::new().name("postbox-sqlite".into());
        let started = thread.spawn(move || {
            let ending = ending;
            ending.0.run();
        });
        match started {
            Ok(_) => Ok(writer),
            Err(error) => Err(Error::connection(format!("cannot start a thread for the file: {error}"))),
        }
    }

    pub(super) fn close(&self) {
        self.operations.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.operations.is_closed()
    }

    /// Runs an operation in a transaction. Its changes are on the disk when the answer is ready.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        self.submit_or(act, None)
    }

    /// The same. `undelivered` gets the result if the caller has stopped waiting for it.
    pub(super) fn submit_or<T: Send + 'static>(
        &self,
        mut act: impl FnMut(&mut Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
        undelivered: Option<oneshot::Undelivered<T>>,
    ) -> Answer<Result<T, Error>> {
        // A lone blocking caller runs its operation on its own thread, which saves two thread switches.
        if thread_waits()
            && !self.is_shared.load(Ordering::Relaxed)
            && self.enqueued.load(Ordering::Acquire) == 0
            && let Ok(mut file) = self.file.try_lock()
        {
            let done = file.transaction(Instant::now() + self.busy_timeout, |transaction| act(transaction));
            drop(file);
            return Answer::ready(match done {
                Ok((value, wakeups)) => {
                    self.wake(wakeups);
                    Ok(value)
                }
                Err(failure) => Err(self.error(failure)),
            });
        }
        self.enqueue(act, undelivered)
    }

    fn enqueue<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
        undelivered: Option<oneshot::Undelivered<T>>,
    ) -> Answer<Result<T, Error>> {
        let (sender, result) = oneshot::channel(undelivered);
        let operation = Submitted { submitted_at: Instant::now(), act, value: None, sender };
        self.enqueued.fetch_add(1, Ordering::Relaxed);
        if !self.operations.enqueue(Box::new(operation)) {
            self.enqueued.fetch_sub(1, Ordering::Relaxed);
            return Answer::ready(Err(Error::connection("the connection to the file is closed; open it again")));
        }
        Answer::from_future(result)
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        lock(&self.file)
    }

    #[cfg(all(test, feature = "conformance"))]
    pub(super) fn with_connection(&self, act: impl FnOnce(&mut Connection)) {
        act(&mut self.lock().connection);
    }

    /// A number that changes when another connection has changed the file.
    fn data_version(&self) -> i64 {
        let file = self.lock();
        let version = file.connection.query_first("PRAGMA data_version", [], |row| row.get(0));
        version.ok().flatten().unwrap_or(-1)
    }

    fn run(&self) {
        let (mut seen_version, mut checked_at) = (self.data_version(), Instant::now());
        let mut interval = MIN_CHECK_INTERVAL;
        let mut last_batch = 0;
        loop {
            let is_watched = !self.waiters.is_empty();
            let next = match is_watched {
                true => self.operations.recv_timeout(interval),
                false => self.operations.recv_blocking(),
            };
            match next {
                Ok(operation) => {
                    interval = MIN_CHECK_INTERVAL;
                    let mut batch = vec![operation];
                    let file = self.lock();
                    self.gather(&mut batch, last_batch);
                    last_batch = batch.len();
                    self.is_shared.store(last_batch > 1, Ordering::Relaxed);
                    self.commit(file, batch);
                }
                Err(QueueError::Timeout(_) | QueueError::Empty) => {}
                Err(_) => break,
            }
            if is_watched && checked_at.elapsed() >= interval {
                checked_at = Instant::now();
                let version = self.data_version();
                interval = (interval * 2).min(MAX_CHECK_INTERVAL);
                if version != std::mem::replace(&mut seen_version, version) {
                    interval = MIN_CHECK_INTERVAL;
                    self.waiters.wake_all();
                }
            }
        }
    }

    /// Adds the enqueued operations to a batch. If the last batch was larger, its callers have just been answered, so the
    /// thread yields as long as that brings more operations. The next batch is then as large as the last.
    fn gather(&self, batch: &mut Vec<Box<dyn Operation>>, last_batch: usize) {
        let mut before = 0;
        loop {
            self.operations.drain_into(batch, MAX_BATCH - batch.len());
            if batch.len() >= last_batch.min(MAX_BATCH) || batch.len() == before {
                break;
            }
            before = batch.len();
            std::thread::yield_now();
        }
    }

    fn commit(&self, mut file: MutexGuard<'_, File>, mut batch: Vec<Box<dyn Operation>>) {
        let first = batch.iter().map(|operation| operation.submitted_at()).min().unwrap_or_else(Instant::now);
        let done = file.transaction(first + self.busy_timeout, |transaction| {
            batch.iter_mut().try_for_each(|operation| operation.run(transaction))
        });
        drop(file);
        match done {
            Ok(((), wakeups)) => {
                self.enqueued.fetch_sub(batch.len(), Ordering::Release);
                self.wake(wakeups);
                wake_all(batch.into_iter().filter_map(|operation| operation.complete(Ok(()))));
            }
            // One operation may have made the others fail, so each runs in a transaction of its own. If the file is
            // locked, all would fail again.
            Err(failure) if batch.len() > 1 && !failure.is_busy() => {
                for operation in batch {
                    self.commit(self.lock(), vec![operation]);
                }
            }
            Err(failure) => {
                self.enqueued.fetch_sub(batch.len(), Ordering::Release);
                let error = self.error(failure);
                wake_all(batch.into_iter().filter_map(|operation| operation.complete(Err(error.clone()))));
            }
        }
    }

    fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Sqlite(error) => from_sqlite(&self.path, self.busy_timeout, error),
            Failure::Panic => Error::Connection {
                message: "the operation failed by an error in postbox, and was undone; please report it".into(),
                transient: false,
                source: None,
            },
        }
    }

    /// Wakes the waiters that a commit concerns.
    fn wake(&self, wakeups: Wakeups) {
        for (event, waiters) in wakeups {
            self.waiters.wake(&event, waiters);
        }
    }

    /// Adds a waiter for an event. The thread checks the file for changes by other processes from now on.
    pub(super) fn add_waiter(&self, event: Event) -> Waiter<Event> {
        let (waiter, is_first) = self.waiters.add(event);
        if is_first {
            // The thread may sleep without a limit: an empty operation wakes it.
            drop(self.enqueue(|_| Ok(()), None));
        }
        waiter
    }
}

impl Failure {
    fn is_busy(&self) -> bool {
        matches!(self, Failure::Sqlite(error) if is_busy(error))
    }
}

impl File {
    /// Runs operations in one transaction, and returns the waiters to wake. Waits for the file's lock until `deadline`.
    fn transaction<T>(
        &mut self,
        deadline: Instant,
        act: impl FnOnce(&mut Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<(T, Wakeups), Failure> {
        let File { connection, clock, cache } = self;
        let begin = || connection.execute_cached("BEGIN IMMEDIATE", []);
        let mut lock = LockWait::until(deadline);
        while let Err(error) = begin() {
            if !lock.wait(&error) {
                return Err(Failure::Sqlite(error));
            }
        }
        // If the transaction fails, the cache may not match the file.
        let old_cache = std::mem::take(cache);
        let work = || {
            let mut transaction = Transaction::start(connection, clock.now(), old_cache)?;
            let value = act(&mut transaction)?;
            let (wakeups, new_cache) = transaction.finish()?;
            connection.execute_cached("COMMIT", [])?;
            Ok((value, wakeups, new_cache))
        };
        let done = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(done) => done.map_err(Failure::Sqlite),
            Err(_) => Err(Failure::Panic),
        };
        match done {
            Ok((value, wakeups, new_cache)) => {
                *cache = new_cache;
                Ok((value, wakeups))
            }
            Err(failure) => {
                if !connection.is_autocommit() {
                    let _ = connection.execute_batch("ROLLBACK");
                }
                Err(failure)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;

    use futures_util::future::join;

    use super::super::SqliteBackend;
    use super::*;
    use crate::backend::{Backend as _, Outgoing, Receive};
    use crate::mailbox::codec::ContentType;
    use crate::resolver::address::MailboxName;

    fn message() -> Outgoing {
        Outgoing::new("1".into(), ContentType::from("text/plain"))
    }

    #[test]
    fn a_panic_fails_its_own_operation_and_undoes_it() {
        let folder = tempfile::tempdir().unwrap();
        let backend = SqliteBackend::open(folder.path().join("a.db")).unwrap();
        let writer = Arc::clone(&backend.inner.writer);
        let name = MailboxName::new("jobs").unwrap();
        let fails = move |name: MailboxName| {
            writer.submit(move |transaction| -> rusqlite::Result<()> {
                transaction.with_new_mailbox(&name, &Default::default(), |mailbox| mailbox.send(&message()))?;
                panic!("on purpose")
            })
        };
        let mailbox = backend.mailbox(&name, &Default::default()).unwrap();
        let total = || mailbox.counts().blocking().unwrap().total();
        let assert_failed = |outcome: Result<(), Error>| {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Connection { transient: false, .. }), "{error:?}");
        };
        // On the writer's thread, alone and in a batch, and on a thread that blocks.
        postbox_core::wait_for(async {
            assert_failed(fails(name.clone()).await);
            let (before, failing, after) =
                (mailbox.send_one(message()), fails(name.clone()), mailbox.send_one(message()));
            let ((before, failing), after) = join(join(before, failing), after).await;
            assert_failed(failing);
            assert!(before.is_ok() && after.is_ok());
        });
        assert_eq!(total(), 2);
        assert_failed(crate::mailbox::operation::Call::new(move || fails(name)).blocking());
        assert_eq!(total(), 2);
    }

    #[test]
    fn waits_fail_when_the_thread_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let backend = SqliteBackend::open(folder.path().join("a.db")).unwrap();
        let mailbox = backend.mailbox(&MailboxName::new("jobs").unwrap(), &Default::default()).unwrap();
        let long = Duration::from_secs(3_600);
        let waiting = std::thread::spawn(move || {
            let request = Receive { max: 1, visibility: long, wait: long };
            postbox_core::wait_for(async { mailbox.receive(request).await })
        });
        while backend.inner.writer.waiters.is_empty() {
            std::thread::yield_now();
        }
        backend.inner.writer.close();
        assert!(matches!(waiting.join().unwrap(), Err(Error::Connection { .. })));
    }

    /// A waker that panics.
    struct Panics;

    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    #[test]
    fn a_waker_that_panics_does_not_end_the_thread() {
        let folder = tempfile::tempdir().unwrap();
        let backend = SqliteBackend::open(folder.path().join("a.db")).unwrap();
        let writer = &backend.inner.writer;
        for _ in 0..3 {
            let waker = Waker::from(Arc::new(Panics));
            let mut submitted = writer.enqueue(|_| Ok(()), None);
            let _ = std::pin::Pin::new(&mut submitted).poll(&mut std::task::Context::from_waker(&waker));
            writer.enqueue(|_| Ok(()), None).blocking().unwrap();
        }
    }

    #[test]
    fn operations_fail_when_the_thread_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let backend = SqliteBackend::open(&path).unwrap();
        let writer = Arc::clone(&backend.inner.writer);
        let submitted = writer.enqueue(|_| Ok(()), None);
        writer.close();
        let _ = submitted.blocking();
        let refused = writer.enqueue(|_| Ok(()), None).blocking().unwrap_err();
        assert!(refused.to_string().contains("open it again"), "{refused}");
        let again = SqliteBackend::open(&path).unwrap();
        again.inner.writer.enqueue(|_| Ok(()), None).blocking().unwrap();
    }
}
