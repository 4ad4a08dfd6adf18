//! The one connection to a file, and its thread, which gathers what is asked for at the same time into one transaction, and
//! so into one wait for the disk. A thread that waits for its own operation and is alone does it itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use postbox_core::shared::mailbox::QueueError;
use postbox_core::{Mailbox as _, UnboundedMailbox};
use rusqlite::Connection;

use super::desk::{Desk, Kept, News};
use super::schema::{LockWait, explain, is_busy};
use super::time::FileClock;
use crate::address::MailboxName;
use crate::error::Error;
use crate::hub::{Hubs, Watched};
use crate::id::ReplyId;
use crate::operation::{Answer, thread_waits};
use crate::promise::{Promise, Undelivered, processors, promise, wake_all};

/// How often the file is looked at for what other processes did, while somebody waits.
const WATCH: Duration = Duration::from_millis(20);
/// Two operations that are no further apart follow each other.
const LINGER: Duration = Duration::from_micros(100);
/// Whoever works alone, one operation after the other, stays awake for an answer that comes within this.
const AWAKE: Duration = Duration::from_micros(500);
/// So many operations share a transaction at most.
const GROUP: usize = 512;

/// Something to do in a transaction.
trait Job: Send {
    /// May be called again, if the transaction had to be given up because of another job.
    fn run(&mut self, desk: &mut Desk<'_>) -> rusqlite::Result<()>;
    /// The transaction is on the disk, or it failed. Who is to be woken.
    fn done(self: Box<Self>, outcome: Result<(), Error>) -> Option<Waker>;
    /// When it was asked for: its wait for the file's lock began then.
    fn asked_at(&self) -> Instant;
}

struct Task<T, F> {
    asked_at: Instant,
    act: F,
    value: Option<T>,
    promise: Promise<T>,
}

impl<T, F> Job for Task<T, F>
where
    T: Send,
    F: FnMut(&mut Desk<'_>) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, desk: &mut Desk<'_>) -> rusqlite::Result<()> {
        if self.promise.is_void() {
            return Ok(());
        }
        self.value = Some((self.act)(desk)?);
        Ok(())
    }

    fn done(self: Box<Self>, outcome: Result<(), Error>) -> Option<Waker> {
        let Task { value, promise, .. } = *self;
        let not_done = || Error::connection("the operation was not done");
        promise.fulfil_quietly(outcome.and_then(|()| value.ok_or_else(not_done)))
    }

    fn asked_at(&self) -> Instant {
        self.asked_at
    }
}

/// The connection, its clock, and what its last transaction knew.
struct File {
    connection: Connection,
    clock: FileClock,
    kept: Kept,
}

/// Why a transaction was not committed.
enum Failure {
    Sqlite(rusqlite::Error),
    /// An operation panicked, and was rolled back.
    Panic,
}

/// What the writer and those who ask it share.
pub(super) struct Queue {
    jobs: UnboundedMailbox<Box<dyn Job>>,
    file: Mutex<File>,
    /// Whether the last transaction was for more than one.
    is_shared: AtomicBool,
    /// Whether the last one followed another soon, was alone, and was done soon.
    is_brisk: AtomicBool,
    pub(super) mailboxes: Hubs<MailboxName>,
    pub(super) replies: Hubs<ReplyId>,
    waiting: AtomicUsize,
    path: PathBuf,
    busy_timeout: Duration,
}

impl Queue {
    /// Starts the thread. It ends when the queue is closed.
    pub(super) fn start(
        path: PathBuf,
        connection: Connection,
        clock: FileClock,
        busy_timeout: Duration,
    ) -> Result<Arc<Self>, Error> {
        let queue = Arc::new(Queue {
            jobs: UnboundedMailbox::new(),
            file: Mutex::new(File { connection, clock, kept: Kept::default() }),
            is_shared: AtomicBool::new(false),
            is_brisk: AtomicBool::new(false),
            mailboxes: Hubs::default(),
            replies: Hubs::default(),
            waiting: AtomicUsize::new(0),
            path,
            busy_timeout,
        });
        /// However the thread ends, nobody waits for it any more.
        struct Ending(Arc<Queue>);
        impl Drop for Ending {
            fn drop(&mut self) {
                self.0.close();
                while let Some(job) = self.0.jobs.dequeue() {
                    drop(job);
                }
            }
        }
        let ending = Ending(Arc::clone(&queue));
        let thread = std::thread::Builder::new().name("postbox-sqlite".into());
        let started = thread.spawn(move || {
            let ending = ending;
            ending.0.run();
        });
        match started {
            Ok(_) => Ok(queue),
            Err(error) => Err(Error::connection(format!("cannot start a thread for the file: {error}"))),
        }
    }

    pub(super) fn close(&self) {
        self.jobs.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.jobs.is_closed()
    }

    /// Asks for something. It is on the disk when the answer is there.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut Desk<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        self.submit(act, None)
    }

    /// The same; a result that nobody waits for goes to `undelivered`.
    pub(super) fn ask_or<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut Desk<'_>) -> rusqlite::Result<T> + Send + 'static,
        undelivered: impl FnOnce(T) + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        self.submit(act, Some(Box::new(undelivered)))
    }

    fn submit<T: Send + 'static>(
        &self,
        mut act: impl FnMut(&mut Desk<'_>) -> rusqlite::Result<T> + Send + 'static,
        undelivered: Option<Undelivered<T>>,
    ) -> Answer<Result<T, Error>> {
        // A thread that waits anyway, and that has nobody to share a transaction with, does without the other thread.
        if thread_waits()
            && !self.is_shared.load(Ordering::Relaxed)
            && let Ok(mut file) = self.file.try_lock()
        {
            let done = file.transaction(Instant::now() + self.busy_timeout, |desk| act(desk));
            drop(file);
            return Answer::ready(match done {
                Ok((value, news)) => {
                    self.tell(news);
                    Ok(value)
                }
                Err(failure) => Err(self.explain(failure)),
            });
        }
        self.hand_over(act, undelivered)
    }

    /// For the thread to do.
    fn hand_over<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut Desk<'_>) -> rusqlite::Result<T> + Send + 'static,
        undelivered: Option<Undelivered<T>>,
    ) -> Answer<Result<T, Error>> {
        let (promise, result) = promise(undelivered);
        let task = Task { asked_at: Instant::now(), act, value: None, promise };
        if !self.jobs.enqueue(Box::new(task)) {
            return Answer::ready(Err(Error::connection("the connection to the file is closed; open it again")));
        }
        let is_brisk = self.is_brisk.load(Ordering::Relaxed);
        Answer::from_future(result.awake_until(is_brisk.then(|| Instant::now() + AWAKE)))
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(all(test, feature = "conformance"))]
    pub(super) fn with_connection(&self, act: impl FnOnce(&mut Connection)) {
        act(&mut self.lock().connection);
    }

    /// Changes when another connection has changed the file.
    fn version(&self) -> i64 {
        self.lock().connection.query_row("PRAGMA data_version", [], |row| row.get(0)).unwrap_or(-1)
    }

    fn run(&self) {
        let (mut seen, mut looked) = (self.version(), Instant::now());
        let mut batch: Vec<Box<dyn Job>> = Vec::new();
        let (mut follows, mut last) = (false, 0);
        loop {
            let is_watched = self.waiting.load(Ordering::SeqCst) > 0;
            match self.next(is_watched, &mut follows) {
                Ok(job) => {
                    batch.push(job);
                    let file = self.lock();
                    self.gather(&mut batch, last);
                    last = batch.len();
                    self.is_shared.store(last > 1, Ordering::Relaxed);
                    let began = Instant::now();
                    self.commit(file, std::mem::take(&mut batch));
                    let is_brisk = follows && last == 1 && began.elapsed() < AWAKE && processors() > 1;
                    self.is_brisk.store(is_brisk, Ordering::Relaxed);
                }
                Err(QueueError::Timeout(_) | QueueError::Empty) => {}
                Err(_) => break,
            }
            if is_watched && looked.elapsed() >= WATCH {
                looked = Instant::now();
                let now = self.version();
                if now != std::mem::replace(&mut seen, now) {
                    self.mailboxes.wake_all();
                    self.replies.wake_all();
                }
            }
        }
    }

    /// The next thing to do. If the last one came soon after the one before, this one may too, and the thread stays awake for
    /// it: to be woken takes as long as the disk does.
    fn next(&self, is_watched: bool, follows: &mut bool) -> Result<Box<dyn Job>, QueueError<Box<dyn Job>>> {
        let since = Instant::now();
        while *follows && since.elapsed() < LINGER {
            if let Some(job) = self.jobs.dequeue() {
                return Ok(job);
            }
            // Whoever asks next may need this very processor.
            std::thread::yield_now();
        }
        let next = if is_watched { self.jobs.recv_timeout(WATCH) } else { self.jobs.recv_blocking() };
        *follows = since.elapsed() < LINGER;
        next
    }

    /// What is there shares a transaction. Where several work at once, those who have just been answered are let run first, as
    /// long as that brings more: otherwise the first of them has the disk for itself, and the others wait for it.
    fn gather(&self, batch: &mut Vec<Box<dyn Job>>, last: usize) {
        let mut before = 0;
        loop {
            self.jobs.drain_into(batch, GROUP - batch.len());
            if batch.len() >= last.min(GROUP) || batch.len() == before {
                break;
            }
            before = batch.len();
            std::thread::yield_now();
        }
    }

    fn explain(&self, failure: Failure) -> Error {
        match failure {
            Failure::Sqlite(error) => explain(&self.path, self.busy_timeout, error),
            Failure::Panic => Error::Connection {
                message: "the operation failed by an error in postbox, and was undone; please report it".into(),
                transient: false,
                source: None,
            },
        }
    }

    fn commit(&self, mut file: MutexGuard<'_, File>, mut jobs: Vec<Box<dyn Job>>) {
        let first = jobs.iter().map(|job| job.asked_at()).min().unwrap_or_else(Instant::now);
        let run = |desk: &mut Desk<'_>| jobs.iter_mut().try_for_each(|job| job.run(desk));
        let done = file.transaction(first + self.busy_timeout, run);
        match done {
            Ok(((), news)) => {
                drop(file);
                self.tell(news);
                wake_all(jobs.into_iter().filter_map(|job| job.done(Ok(()))));
            }
            // What holds for the file holds for all of them.
            Err(failure) if jobs.len() > 1 && !matches!(&failure, Failure::Sqlite(error) if is_busy(error)) => {
                drop(file);
                // One of them spoils it for all: each by itself.
                for job in jobs {
                    self.commit(self.lock(), vec![job]);
                }
            }
            Err(failure) => {
                drop(file);
                let error = self.explain(failure);
                wake_all(jobs.into_iter().filter_map(|job| job.done(Err(error.clone()))));
            }
        }
    }

    /// Wakes the waiters that a commit concerns.
    fn tell(&self, news: News) {
        for (name, many) in news.mailboxes {
            self.mailboxes.wake(&name, many);
        }
        for reply in news.replies {
            self.replies.wake(&reply, u64::MAX);
        }
    }
}

impl Watched for Queue {
    /// Somebody begins to wait for what other processes do.
    fn begin_waiting(self: &Arc<Self>) {
        if self.waiting.fetch_add(1, Ordering::SeqCst) == 0 {
            // The thread may sleep without a limit.
            drop(self.hand_over(|_| Ok(()), None));
        }
    }

    fn end_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl File {
    /// Does something in one transaction. Returns what waiters are told. The file's lock is waited for until `deadline`.
    fn transaction<T>(
        &mut self,
        deadline: Instant,
        act: impl FnOnce(&mut Desk<'_>) -> rusqlite::Result<T>,
    ) -> Result<(T, News), Failure> {
        let (connection, clock, kept) = (&self.connection, &mut self.clock, std::mem::take(&mut self.kept));
        let begin = || connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]);
        let mut lock = LockWait::until(deadline);
        while let Err(error) = begin() {
            if !lock.wait(&error) {
                return Err(Failure::Sqlite(error));
            }
        }
        let work = || {
            let mut desk = Desk::open(connection, clock.now(), kept)?;
            let value = act(&mut desk)?;
            let (news, kept) = desk.close()?;
            connection.prepare_cached("COMMIT")?.execute([])?;
            Ok((value, news, kept))
        };
        let done = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(done) => done.map_err(Failure::Sqlite),
            Err(_) => Err(Failure::Panic),
        };
        match done {
            Ok((value, news, kept)) => {
                self.kept = kept;
                Ok((value, news))
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
    use futures_util::future::join;

    use super::super::{Desk, SqliteBackend};
    use super::*;
    use crate::backend::{Backend as _, Outgoing};
    use crate::codec::ContentType;

    #[test]
    fn a_panic_fails_its_own_operation_and_undoes_it() {
        let folder = tempfile::tempdir().unwrap();
        let backend = SqliteBackend::open(folder.path().join("a.db")).unwrap();
        let queue = Arc::clone(&backend.inner.queue);
        let name = MailboxName::new("jobs").unwrap();
        let fails = move |name: MailboxName| {
            queue.ask(move |desk: &mut Desk<'_>| -> rusqlite::Result<()> {
                desk.send(&name, &Default::default(), &Outgoing::new("1".into(), ContentType::from("text/plain")))?;
                panic!("on purpose")
            })
        };
        let mailbox = backend.mailbox(&name, &Default::default()).unwrap();
        let total = || mailbox.counts().blocking().unwrap().total();
        let assert_failed = |outcome: Result<(), Error>| {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Connection { transient: false, .. }), "{error:?}");
        };
        // By the thread of the file, alone and together with others, and by a thread that waits.
        let send = || mailbox.send_one(Outgoing::new("2".into(), ContentType::from("text/plain")));
        postbox_core::wait_for(async {
            assert_failed(fails(name.clone()).await);
            let (before, failing, after) = (send(), fails(name.clone()), send());
            let ((before, failing), after) = join(join(before, failing), after).await;
            assert_failed(failing);
            assert!(before.is_ok() && after.is_ok());
        });
        assert_eq!(total(), 2);
        assert_failed(crate::operation::Call::new(move || fails(name)).blocking());
        assert_eq!(total(), 2);
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let backend = SqliteBackend::open(&path).unwrap();
        let queue = Arc::clone(&backend.inner.queue);
        let asked = queue.hand_over(|_| Ok(()), None);
        queue.close();
        let _ = asked.blocking();
        let refused = queue.hand_over(|_| Ok(()), None).blocking().unwrap_err();
        assert!(refused.to_string().contains("open it again"), "{refused}");
        let again = SqliteBackend::open(&path).unwrap();
        again.inner.queue.hand_over(|_| Ok(()), None).blocking().unwrap();
    }
}
