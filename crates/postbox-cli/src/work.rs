//! `postbox work`: a program per message.

use std::future::{Future, poll_fn};
use std::io::{self, Write as _};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use postbox::worker::Cancellation;
use postbox::{Backoff, Context, HandlerError};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::arguments::Work;
use crate::commands::on_interrupt;
use crate::output::{self, Failure};
use crate::process::{GRACE, Group};
use crate::raw::Mailbox;

/// Statuses of sysexits.h: the data or the configuration is wrong, and will be; the failure may pass.
const WRONG: [i32; 2] = [65, 78];
/// The largest reply, in bytes.
const MOST_OUTPUT: usize = 64 << 20;
/// The bytes at the end of a failed program's standard error that are kept.
const MOST_ERRORS: usize = 4 << 10;
/// The characters of them that are in the reason of a dead letter.
const MOST_REASON: usize = 500;
/// How long the pipes of a program are read when it has ended: other processes may hold them open for ever.
const PIPES: Duration = Duration::from_secs(1);

pub(crate) fn run(mailbox: &Mailbox, options: Work, json: bool) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Other(format!("cannot run programs: {error}")))?;
    let interrupted = Cancellation::new();
    let programs = Arc::new(Programs {
        command: options.command,
        shutdown_limit: options.shutdown_limit,
        pause: options.backoff.max(Duration::from_millis(10)),
        interrupted: interrupted.clone(),
        json,
    });
    let handler = move |body: Bytes, context: Context| {
        let programs = Arc::clone(&programs);
        async move { programs.handle(body, &context).await }
    };
    let mut worker = postbox::Worker::new(mailbox, handler)
        .concurrency(options.concurrency)
        .visibility_timeout(options.visibility)
        .max_attempts(options.retries)
        .backoff(Backoff::exponential(options.backoff, Duration::from_secs(900)))
        // Programs are ended before that.
        .shutdown_timeout(options.shutdown_limit.saturating_add(2 * GRACE));
    if let Some(most) = options.max_iterations {
        worker = worker.max_iterations(most);
    }
    let handle = worker.handle();
    on_interrupt("what runs is finished, the rest is given back; Ctrl-C again ends at once", json, move || {
        handle.shutdown();
        interrupted.cancel();
    })?;
    let report = runtime.block_on(async { worker.run().await })?;
    output::line(if json {
        json!({
            "received": report.received, "succeeded": report.succeeded, "retried": report.retried,
            "dead_lettered": report.dead_lettered, "given_back": report.given_back,
        })
        .to_string()
    } else {
        format!(
            "{} received: {} finished, {} to be tried again, {} dead, {} given back",
            report.received, report.succeeded, report.retried, report.dead_lettered, report.given_back
        )
    })
}

/// How programs are run.
struct Programs {
    command: Vec<String>,
    shutdown_limit: Duration,
    /// Between two starts, if the first fails.
    pause: Duration,
    interrupted: Cancellation,
    json: bool,
}

impl Programs {
    /// Runs the program on one message.
    async fn handle(&self, body: Bytes, context: &Context) -> Result<Bytes, HandlerError> {
        let (mut group, mut pipes) = match self.start(body, context) {
            Ok(started) => started,
            Err(error) => {
                let text = format!("cannot start {}: {error}", self.command[0]);
                self.note(context, &format!("{text}; the message is given back"), "");
                // The message is not to blame. The next start would fail as well.
                let stopped = first(self.interrupted.cancelled(), context.cancellation().cancelled());
                let _ = timeout(self.pause, stopped).await;
                return Err(HandlerError::release(text));
            }
        };
        let over = async {
            self.interrupted.cancelled().await;
            sleep(self.shutdown_limit).await;
        };
        let stopped = first(over, context.cancellation().cancelled());
        match first(group.wait(), stopped).await {
            First::Left(status) => {
                let _ = timeout(PIPES, async { while pipes.tasks.join_next().await.is_some() {} }).await;
                let status =
                    status.map_err(|error| HandlerError::transient(format_args!("cannot wait for it: {error}")))?;
                self.outcome(status, pipes, context)
            }
            First::Right(First::Left(())) => {
                group.end().await;
                let text = "ended: it ran longer than the shutdown limit";
                self.note(context, &format!("{text}; the message is given back"), "");
                Err(HandlerError::give_back(text))
            }
            First::Right(First::Right(())) => {
                group.end().await;
                let text = "ended: the lease of its message was lost";
                self.note(context, text, "");
                Err(HandlerError::transient(text))
            }
        }
    }

    fn start(&self, body: Bytes, context: &Context) -> io::Result<(Group, Pipes)> {
        let mut group = Group::start(
            Command::new(&self.command[0])
                .args(&self.command[1..])
                .env("POSTBOX_MESSAGE_ID", context.message_id().to_string())
                .env("POSTBOX_DELIVERY_COUNT", context.delivery_count().to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        )?;
        let mut pipes = Pipes::default();
        if let Some(mut input) = group.child.stdin.take() {
            pipes.tasks.spawn(async move {
                // A program may end without reading all of it.
                let _ = input.write_all(&body).await;
            });
        }
        if let Some(pipe) = group.child.stdout.take() {
            pipes.tasks.spawn(collect(pipe, Arc::clone(&pipes.output)));
        }
        if let Some(pipe) = group.child.stderr.take() {
            pipes.tasks.spawn(pass_on(pipe, Arc::clone(&pipes.errors), self.json));
        }
        Ok((group, pipes))
    }

    /// What becomes of the message, now that the program has ended.
    fn outcome(&self, status: ExitStatus, pipes: Pipes, context: &Context) -> Result<Bytes, HandlerError> {
        let output = std::mem::take(&mut *lock(&pipes.output));
        let is_answer = context.expects_reply() || context.reply_to().is_some();
        let (text, is_permanent) = match status.code() {
            Some(0) if is_answer && output.len() > MOST_OUTPUT => {
                (format!("a reply of more than {} MiB", MOST_OUTPUT >> 20), true)
            }
            Some(0) => return Ok(output.into()),
            Some(code) => (format!("exit status {code}"), WRONG.contains(&code)),
            None => ("ended by a signal".into(), false),
        };
        let errors = lock(&pipes.errors);
        let errors = String::from_utf8_lossy(errors.split_at(errors.len().saturating_sub(MOST_ERRORS)).1);
        self.note(context, &text, &errors);
        let reason = match output::end_of(&errors, MOST_REASON) {
            end if end.is_empty() => text,
            end => format!("{text}: {end}"),
        };
        Err(if is_permanent { HandlerError::permanent(reason) } else { HandlerError::transient(reason) })
    }

    /// Says what happened to a program. Its standard error has been passed on already, unless the notes are JSON.
    fn note(&self, context: &Context, text: &str, errors: &str) {
        let (id, count) = (context.message_id(), context.delivery_count());
        let text = format!("message {id}, delivery {count}: {text}");
        match self.json {
            true => output::say(&json!({ "note": text, "id": id, "stderr": errors }).to_string()),
            false => output::note(&text, false),
        }
    }
}

/// What goes through the pipes of a program. They are closed when this is dropped.
#[derive(Default)]
struct Pipes {
    tasks: JoinSet<()>,
    /// Standard output: one byte more than is allowed, if there is more.
    output: Arc<Mutex<Vec<u8>>>,
    /// The end of standard error.
    errors: Arc<Mutex<Vec<u8>>>,
}

fn lock(bytes: &Mutex<Vec<u8>>) -> std::sync::MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads all there is, so that the program never waits, and keeps as much as a reply may have.
async fn collect(mut pipe: impl AsyncRead + Unpin, output: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(many @ 1..) = pipe.read(&mut chunk).await {
        let mut output = lock(&output);
        let room = (MOST_OUTPUT + 1).saturating_sub(output.len());
        output.extend_from_slice(&chunk[..many.min(room)]);
    }
}

/// Passes standard error on as it comes, and keeps its end.
async fn pass_on(mut pipe: impl AsyncRead + Unpin, errors: Arc<Mutex<Vec<u8>>>, json: bool) {
    let mut chunk = vec![0; 4 << 10];
    while let Ok(many @ 1..) = pipe.read(&mut chunk).await {
        if !json {
            // There is nowhere to report that it cannot be written.
            let _ = io::stderr().write_all(&chunk[..many]);
        }
        let mut errors = lock(&errors);
        errors.extend_from_slice(&chunk[..many]);
        if errors.len() > 2 * MOST_ERRORS {
            let surplus = errors.len() - MOST_ERRORS;
            errors.drain(..surplus);
        }
    }
}

/// Which of two futures was ready first.
enum First<A, B> {
    Left(A),
    Right(B),
}

async fn first<A: Future, B: Future>(left: A, right: B) -> First<A::Output, B::Output> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| {
        if let Poll::Ready(output) = left.as_mut().poll(context) {
            return Poll::Ready(First::Left(output));
        }
        right.as_mut().poll(context).map(First::Right)
    })
    .await
}
