//! The thread that does the work of a backend, and the receives that wait for messages.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use postbox::Error;
use postbox::backend::Delivery;
use postbox::clock::{Clock, Moment};
use postbox::operation::Answer;
use tokio::sync::oneshot;

/// How often a waiting receive looks for changes by other processes, and for deadlines.
const LOOK: Duration = Duration::from_millis(20);

enum Task {
    /// A verb, and the mailbox in which it may make messages visible.
    Run(Box<dyn FnOnce() + Send>, Option<PathBuf>),
    Wait(Waiting),
}

/// Leases messages, or returns none if there are none.
pub(super) type Look = Box<dyn FnMut() -> Result<Vec<Delivery>, Error> + Send>;
/// Gives back messages that were leased for a receive that was dropped.
pub(super) type GiveBack = Arc<dyn Fn(Vec<Delivery>) + Send + Sync>;

/// A receive that has not been answered yet.
struct Waiting {
    path: PathBuf,
    until: Moment,
    look: Look,
    give_back: GiveBack,
    answer: Option<oneshot::Sender<Result<Leased, Error>>>,
}

impl Waiting {
    /// Answers the receive, if there is something to answer. Returns whether it is over.
    fn look(&mut self, now: Moment) -> bool {
        if self.answer.as_ref().is_none_or(oneshot::Sender::is_closed) {
            return true;
        }
        let result = (self.look)();
        if matches!(&result, Ok(deliveries) if deliveries.is_empty()) && now < self.until {
            return false;
        }
        let leased = result.map(|deliveries| Leased { deliveries, give_back: Arc::clone(&self.give_back) });
        // What a receive that is dropped now does not take, `Leased` gives back.
        let _ = self.answer.take().map(|answer| answer.send(leased));
        true
    }
}

/// The messages of a receive, until its caller has them.
struct Leased {
    deliveries: Vec<Delivery>,
    give_back: GiveBack,
}

impl Drop for Leased {
    fn drop(&mut self) {
        if !self.deliveries.is_empty() {
            (self.give_back)(std::mem::take(&mut self.deliveries));
        }
    }
}

/// A handle on the thread. The thread ends with the last handle.
#[derive(Clone, Debug)]
pub(super) struct Thread(Sender<Task>);

impl Thread {
    pub(super) fn start(clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (tasks, inbox) = channel();
        std::thread::Builder::new().name("postbox-folder".into()).spawn(move || run(&inbox, &*clock))?;
        Ok(Thread(tasks))
    }

    /// Runs a verb on the thread. Then looks for the receives that wait at `path`.
    pub(super) fn answer<T: Send + 'static>(
        &self,
        path: Option<&Path>,
        verb: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let (sender, result) = oneshot::channel();
        let verb = Box::new(move || drop(sender.send(verb())));
        let _ = self.0.send(Task::Run(verb, path.map(Into::into)));
        Answer::from_future(async move { result.await.unwrap_or_else(|_| Err(ended())) })
    }

    /// Runs a receive: at once, and again until there is a message or the wait is over.
    pub(super) fn receive(
        &self,
        path: &Path,
        until: Moment,
        look: Look,
        give_back: GiveBack,
    ) -> Answer<Result<Vec<Delivery>, Error>> {
        let (sender, result) = oneshot::channel();
        let _ = self.0.send(Task::Wait(Waiting { path: path.into(), until, look, give_back, answer: Some(sender) }));
        Answer::from_future(async move {
            let mut leased = result.await.unwrap_or_else(|_| Err(ended()))?;
            Ok(std::mem::take(&mut leased.deliveries))
        })
    }
}

fn ended() -> Error {
    Error::connection("the thread of the folder backend has ended")
}

fn run(inbox: &Receiver<Task>, clock: &dyn Clock) {
    let mut waiting: Vec<Waiting> = Vec::new();
    loop {
        let task = match waiting.is_empty() {
            true => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => inbox.recv_timeout(LOOK),
        };
        match task {
            Ok(Task::Run(verb, path)) => {
                verb();
                waiting.retain_mut(|receive| Some(&receive.path) != path.as_ref() || !receive.look(clock.now()));
            }
            Ok(Task::Wait(mut receive)) => {
                if !receive.look(clock.now()) {
                    waiting.push(receive);
                }
            }
            Err(RecvTimeoutError::Timeout) => waiting.retain_mut(|receive| !receive.look(clock.now())),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
