//! `postbox work`: runs a program for each message.

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
use crate::process::{GRACE_PERIOD, ProcessGroup};
use crate::raw::Mailbox;

/// Exit statuses of permanent failures, from sysexits.h: EX_DATAERR and EX_CONFIG.
const PERMANENT_FAILURES: [i32; 2] = [65, 78];
/// Maximum size of a reply, in bytes.
const MAX_REPLY: usize = 64 << 20;
/// Number of bytes that are kept from the end of a failed program's standard error.
const MAX_STDERR: usize = 4 << 10;
/// Number of characters of standard error that the reason of a dead letter contains.
const MAX_REASON: usize = 500;
/// How long the pipes of a program are read after it has exited. Background processes may hold them open for ever.
const PIPE_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn run(mailbox: &Mailbox, options: Work, json: bool) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Other(format!("cannot run programs: {error}")))?;
    let interrupted = Cancellation::new();
    let runner = Arc::new(ProgramRunner {
        command: options.command,
        shutdown_limit: options.shutdown_limit,
        pause: options.backoff.max(Duration::from_millis(10)),
        interrupted: interrupted.clone(),
        json,
    });
    let handler = move |body: Bytes, context: Context| {
        let runner = Arc::clone(&runner);
        async move { runner.handle(body, &context).await }
    };
    let mut worker = postbox::Worker::new(mailbox, handler)
        .concurrency(options.concurrency)
        .visibility_timeout(options.visibility)
        .max_attempts(options.retries)
        .backoff(Backoff::exponential(options.backoff, Duration::from_secs(900)))
        // Programs are terminated before this timeout.
        .shutdown_timeout(options.shutdown_limit.saturating_add(2 * GRACE_PERIOD));
    if let Some(max) = options.max_iterations {
        worker = worker.max_iterations(max);
    }
    let handle = worker.handle();
    let note = "waiting for running programs and giving other messages back; press Ctrl-C again to exit at once";
    on_interrupt(note, json, move || {
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

/// Runs the program for each message.
struct ProgramRunner {
    command: Vec<String>,
    shutdown_limit: Duration,
    /// How long to wait after a failed start before the message is released.
    pause: Duration,
    interrupted: Cancellation,
    json: bool,
}

impl ProgramRunner {
    /// Runs the program on one message.
    async fn handle(&self, body: Bytes, context: &Context) -> Result<Bytes, HandlerError> {
        let (mut group, mut pipes) = match self.start(body, context) {
            Ok(started) => started,
            Err(error) => {
                let text = format!("cannot start {}: {error}", self.command[0]);
                self.note(context, &format!("{text}; the message is given back"), "");
                // The cause is not the message, so the delivery does not count. A new start at once would fail again.
                let stopped = select(self.interrupted.cancelled(), context.cancellation().cancelled());
                let _ = timeout(self.pause, stopped).await;
                return Err(HandlerError::release(text));
            }
        };
        let shutdown = async {
            self.interrupted.cancelled().await;
            sleep(self.shutdown_limit).await;
        };
        let stopped = select(shutdown, context.cancellation().cancelled());
        match select(group.wait(), stopped).await {
            Either::Left(status) => {
                let _ = timeout(PIPE_TIMEOUT, async { while pipes.tasks.join_next().await.is_some() {} }).await;
                let status = status
                    .map_err(|error| HandlerError::transient(format_args!("cannot wait for the program: {error}")))?;
                self.outcome(status, pipes, context)
            }
            Either::Right(Either::Left(())) => {
                group.terminate().await;
                let text = "the program was terminated because it ran longer than --shutdown-limit";
                self.note(context, &format!("{text}; the message is given back"), "");
                Err(HandlerError::give_back(text))
            }
            Either::Right(Either::Right(())) => {
                group.terminate().await;
                let text = "the program was terminated because the lease of its message was lost";
                self.note(context, text, "");
                Err(HandlerError::transient(text))
            }
        }
    }

    fn start(&self, body: Bytes, context: &Context) -> io::Result<(ProcessGroup, Pipes)> {
        let mut group = ProcessGroup::start(
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
                // Writing fails if the program exits without reading the whole body.
                let _ = input.write_all(&body).await;
            });
        }
        if let Some(pipe) = group.child.stdout.take() {
            pipes.tasks.spawn(read_stdout(pipe, Arc::clone(&pipes.stdout)));
        }
        if let Some(pipe) = group.child.stderr.take() {
            pipes.tasks.spawn(forward_stderr(pipe, Arc::clone(&pipes.stderr), self.json));
        }
        Ok((group, pipes))
    }

    /// The reply, or the error of the handler, for the exit status of a program.
    fn outcome(&self, status: ExitStatus, pipes: Pipes, context: &Context) -> Result<Bytes, HandlerError> {
        let output = std::mem::take(&mut *lock(&pipes.stdout));
        let is_answer = context.expects_reply() || context.reply_to().is_some();
        let (text, is_permanent) = match status.code() {
            Some(0) if is_answer && output.len() > MAX_REPLY => {
                (format!("the reply is larger than {} MiB", MAX_REPLY >> 20), true)
            }
            Some(0) => return Ok(output.into()),
            Some(code) => (format!("exit status {code}"), PERMANENT_FAILURES.contains(&code)),
            None => ("the program was killed by a signal".into(), false),
        };
        let stderr = lock(&pipes.stderr);
        let stderr = String::from_utf8_lossy(stderr.split_at(stderr.len().saturating_sub(MAX_STDERR)).1);
        self.note(context, &text, &stderr);
        let reason = match output::last_chars(&stderr, MAX_REASON) {
            end if end.is_empty() => text,
            end => format!("{text}: {end}"),
        };
        Err(if is_permanent { HandlerError::permanent(reason) } else { HandlerError::transient(reason) })
    }

    /// Prints what happened to a program. Only JSON notes contain its standard error, which is otherwise printed as it comes.
    fn note(&self, context: &Context, text: &str, stderr: &str) {
        let (id, count) = (context.message_id(), context.delivery_count());
        let text = format!("message {id}, delivery {count}: {text}");
        match self.json {
            true => output::error_line(&json!({ "note": text, "id": id, "stderr": stderr }).to_string()),
            false => output::note(&text, false),
        }
    }
}

/// The pipes of a program. They are closed when this is dropped.
#[derive(Default)]
struct Pipes {
    tasks: JoinSet<()>,
    /// Standard output, up to one byte more than `MAX_REPLY`, so that its length shows whether it is too large.
    stdout: Arc<Mutex<Vec<u8>>>,
    /// The end of standard error.
    stderr: Arc<Mutex<Vec<u8>>>,
}

fn lock(bytes: &Mutex<Vec<u8>>) -> std::sync::MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads all of standard output, so that the program never blocks, and keeps the start of it.
async fn read_stdout(mut pipe: impl AsyncRead + Unpin, output: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(len @ 1..) = pipe.read(&mut chunk).await {
        let mut output = lock(&output);
        let room = (MAX_REPLY + 1).saturating_sub(output.len());
        output.extend_from_slice(&chunk[..len.min(room)]);
    }
}

/// Copies the program's standard error to that of this process, unless notes are JSON, and keeps the end of it.
async fn forward_stderr(mut pipe: impl AsyncRead + Unpin, stderr: Arc<Mutex<Vec<u8>>>, json: bool) {
    let mut chunk = vec![0; 4 << 10];
    while let Ok(len @ 1..) = pipe.read(&mut chunk).await {
        if !json {
            // A failure to write to standard error cannot be reported.
            let _ = io::stderr().write_all(&chunk[..len]);
        }
        let mut stderr = lock(&stderr);
        stderr.extend_from_slice(&chunk[..len]);
        if stderr.len() > 2 * MAX_STDERR {
            let surplus = stderr.len() - MAX_STDERR;
            stderr.drain(..surplus);
        }
    }
}

/// The output of the future that was ready first.
enum Either<A, B> {
    Left(A),
    Right(B),
}

async fn select<A: Future, B: Future>(left: A, right: B) -> Either<A::Output, B::Output> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| {
        if let Poll::Ready(output) = left.as_mut().poll(context) {
            return Poll::Ready(Either::Left(output));
        }
        right.as_mut().poll(context).map(Either::Right)
    })
    .await
}
