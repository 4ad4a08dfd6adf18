//! `postbox demo`: worker processes answer requests, one worker is killed, and no request is lost.

use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use postbox::{Backoff, Context, Error, HandlerError};
use serde_json::{Value, json};

use crate::arguments::Demo;
use crate::commands::{on_interrupt, open, progress};
use crate::output::{self, Failure};
use crate::raw::Mailbox;

/// One request in this number is poison: no worker can handle it.
const POISON: u32 = 500;
/// Number of concurrent clients.
const CLIENTS: u32 = 16;
/// Leases are short, so that messages of the killed worker are soon delivered again.
const LEASE: Duration = Duration::from_secs(2);

/// Environment variable that is set for the worker process that will be killed.
const SLOW: &str = "POSTBOX_DEMO_SLOW";

/// Runs a worker process. It exits when its standard input is closed, which happens when the demo ends.
pub(crate) fn work(mailbox: &Mailbox) -> Result<(), Failure> {
    let until_closed = || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    };
    std::thread::Builder::new()
        .spawn(until_closed)
        .map_err(|error| Failure::Other(format!("cannot start a thread: {error}")))?;
    let handler = |body: Bytes, context: Context| async move {
        let number: u64 = std::str::from_utf8(&body)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| HandlerError::transient(format_args!("{:?} is not a number", output::short(&body))))?;
        // The worker that will be killed takes longer for a message and reports its start, so that the kill comes while
        // it handles a message.
        let is_slow = std::env::var_os(SLOW).is_some();
        if is_slow {
            println!("working");
        }
        std::thread::sleep(Duration::from_millis(if is_slow { 50 } else { 1 }));
        let answer =
            json!({ "answer": number * number, "delivery": context.delivery_count(), "worker": std::process::id() });
        Ok::<Bytes, HandlerError>(answer.to_string().into())
    };
    let worker = postbox::Worker::new(mailbox, handler).concurrency(4).prefetch(4);
    worker
        .visibility_timeout(LEASE)
        .max_attempts(3)
        .backoff(Backoff::fixed(Duration::from_millis(50)))
        .run()
        .blocking()?;
    Ok(())
}

/// The worker processes. The first one is the victim, which will be killed.
#[derive(Clone, Default)]
struct Workers(Arc<Mutex<Vec<Child>>>);

impl Workers {
    /// Starts a worker. Returns the standard output of the victim, which prints a line for each message that it starts.
    fn start(&self, file: &Path, is_victim: bool) -> Result<Option<ChildStdout>, Failure> {
        let mut workers = lock(&self.0);
        let mut child = start_worker(file, is_victim)?;
        let output = child.stdout.take();
        workers.push(child);
        Ok(output)
    }

    /// Kills the victim the next time it starts to handle a message.
    fn kill_victim(&self, started: &Receiver<()>) {
        started.try_iter().for_each(drop);
        let _ = started.recv_timeout(Duration::from_secs(2));
        lock(&self.0).first_mut().map(kill);
    }

    fn kill_all(&self) {
        lock(&self.0).drain(..).for_each(|mut child| kill(&mut child));
    }
}

fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Returns a channel that receives a value each time the victim starts to handle a message.
fn watch_starts(output: ChildStdout) -> Receiver<()> {
    let (sender, started) = mpsc::channel();
    std::thread::spawn(move || {
        for _ in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = sender.send(());
        }
    });
    started
}

/// Kills all worker processes when it is dropped.
struct KillOnDrop(Workers);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill_all();
    }
}

/// A temporary folder, if the demo made one. It is removed on drop.
struct TemporaryFolder(Option<PathBuf>);

impl TemporaryFolder {
    fn remove(&self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the path of the demo's SQLite file, and the folder to remove afterwards.
fn database_path(options: &Demo) -> Result<(PathBuf, TemporaryFolder), Failure> {
    if let Some(file) = &options.file {
        return Ok((file.clone(), TemporaryFolder(None)));
    }
    let folder = std::env::temp_dir().join(format!("postbox-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| {
        Failure::Other(format!("cannot create folder {}: {error}; set TMPDIR or use --file", folder.display()))
    })?;
    Ok((folder.join("demo.db"), TemporaryFolder(Some(folder))))
}

fn start_worker(file: &Path, is_slow: bool) -> Result<Child, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Other(format!("cannot find the path of this program: {error}")))?;
    let mut command = Command::new(program);
    if is_slow {
        command.env(SLOW, "1");
    }
    command
        .args(["--url", &url(file), "demo-worker"])
        // The operating system closes this pipe when this process ends, also after SIGKILL. Then the worker exits.
        .stdin(Stdio::piped())
        .stdout(if is_slow { Stdio::piped() } else { Stdio::null() })
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Failure::Other(format!("cannot start a worker process: {error}")))
}

fn url(file: &Path) -> String {
    format!("sqlite://{}/demo", file.display())
}

/// What the clients have counted.
#[derive(Default)]
struct Totals {
    answered: u32,
    redelivered: u32,
    wrong: u32,
    unanswered: u32,
    latencies: Vec<Duration>,
}

pub(crate) fn run(options: &Demo, json: bool) -> Result<(), Failure> {
    if options.requests == 0 || options.workers == 0 {
        return Err(Failure::Other("--requests and --workers must be 1 or more".into()));
    }
    let (file, folder) = database_path(options)?;
    let (workers, interrupted_folder) = (Workers::default(), TemporaryFolder(folder.0.clone()));
    let interrupted_workers = workers.clone();
    on_interrupt("", json, move || {
        // The lock is held until the process exits, so that no other worker can be started.
        let mut workers = lock(&interrupted_workers.0);
        workers.iter_mut().for_each(kill);
        interrupted_folder.remove();
        output::failed(&Failure::Interrupted("interrupted before the demo was complete"), json);
        std::process::exit(130);
    })?;
    let workers = KillOnDrop(workers);
    let mailbox = open(&url(&file))?;
    mailbox.create().blocking()?;
    if !json {
        output::line(format!(
            "{} requests to {} worker processes through {}.\nOne worker is killed (SIGKILL) while it handles a message. Every {POISON}th request is poison.",
            options.requests,
            options.workers,
            file.display()
        ))?;
    }
    let victim_starts = workers.0.start(&file, true)?.map(watch_starts);
    for _ in 1..options.workers {
        workers.0.start(&file, false)?;
    }
    let victim_starts = Mutex::new(victim_starts);
    let progress = progress(u64::from(options.requests), "answered");
    let (next, start, totals) = (AtomicU32::new(0), Instant::now(), Mutex::new(Totals::default()));
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let client = || -> Result<(), Failure> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= options.requests {
                    return Ok(());
                }
                // After a third of the requests, kill the victim while it holds messages, and start another worker.
                if number == options.requests / 3 {
                    if let Some(started) = lock(&victim_starts).take() {
                        workers.0.kill_victim(&started);
                    }
                    workers.0.start(&file, false)?;
                }
                let is_poison = number % POISON == POISON - 1;
                let body = if is_poison { "poison".to_string() } else { number.to_string() };
                let sent_at = Instant::now();
                let reply = mailbox.send_expecting_reply(&body.into()).blocking()?;
                if is_poison {
                    // A poison request gets no answer. It becomes a dead letter.
                    continue;
                }
                let answer = reply.wait().timeout(Duration::from_secs(60)).blocking();
                let mut totals = lock(&totals);
                match answer {
                    Ok(answer) => {
                        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
                        let is_correct = answer["answer"] == json!(u64::from(number) * u64::from(number));
                        totals.answered += u32::from(is_correct);
                        totals.wrong += u32::from(!is_correct);
                        totals.redelivered += u32::from(answer["delivery"].as_u64() > Some(1));
                        totals.latencies.push(sent_at.elapsed());
                        progress.inc(1);
                    }
                    Err(Error::ReplyTimeout { .. } | Error::ReplyExpired { .. }) => totals.unanswered += 1,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().filter_map(|client| client.join().ok()).collect()
    });
    results.into_iter().collect::<Result<(), Failure>>()?;
    let elapsed = start.elapsed();
    // Wait until each poison request has used all its attempts and is a dead letter.
    let poison = options.requests / POISON;
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut counts = mailbox.counts().blocking()?;
    while (counts.dead < u64::from(poison) || counts.total() > 0) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
        counts = mailbox.counts().blocking()?;
    }
    progress.finish_and_clear();
    drop(workers);
    report(options, &lock(&totals), counts.dead, elapsed, json)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn report(options: &Demo, totals: &Totals, dead: u64, elapsed: Duration, json: bool) -> Result<(), Failure> {
    let mut latencies = totals.latencies.clone();
    latencies.sort_unstable();
    let at =
        |share: f64| latencies.get(((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1)));
    let millis = |share: f64| at(share).map_or(0.0, |latency| latency.as_secs_f64() * 1000.0);
    let (p50, p99) = (millis(0.5), millis(0.99));
    let rate = f64::from(totals.answered) / elapsed.as_secs_f64();
    let lost = i64::from(options.requests) - i64::from(totals.answered) - i64::from(totals.wrong) - dead as i64;
    if json {
        output::line(json!({
            "sent": options.requests, "answered": totals.answered, "redelivered": totals.redelivered, "dead_lettered": dead,
            "lost": lost, "answers_per_s": rate, "p50_ms": p50, "p99_ms": p99,
        }))?;
    } else {
        output::line(format!(
            "\n  sent            {:>8}\n  answered        {:>8}\n  redelivered     {:>8}   after a worker was killed\n  \
             dead-lettered   {:>8}   poison, given up after 3 attempts\n  lost            {:>8}\n\n  \
             {rate:.0} answers a second, latency p50 {p50:.1} ms, p99 {p99:.1} ms",
            options.requests, totals.answered, totals.redelivered, dead, lost
        ))?;
    }
    if lost == 0 && totals.wrong == 0 && totals.unanswered == 0 {
        Ok(())
    } else {
        Err(Failure::Other(format!(
            "{lost} requests lost, {} wrong answers, {} requests not answered within 60 s; report this as a bug",
            totals.wrong, totals.unanswered
        )))
    }
}
