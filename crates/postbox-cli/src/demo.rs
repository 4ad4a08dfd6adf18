//! `postbox demo`: workers answer requests, one of them is killed, and nothing is lost.

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

/// One request out of this number is one that no worker can handle.
const POISON: u32 = 500;
/// The clients that ask at a time.
const CLIENTS: u32 = 16;
/// Leases are short here, so that the work of a dead worker comes back soon.
const LEASE: Duration = Duration::from_secs(2);

/// Set for the worker that is to be killed.
const SLOW: &str = "POSTBOX_DEMO_SLOW";

/// A worker process. It ends when its standard input is closed, which is when the demo has ended.
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
        // A little work; more of it for the one that is to be killed, which says so: it is to die with a message in its hands.
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

/// Worker processes. The first is the victim.
#[derive(Clone, Default)]
struct Workers(Arc<Mutex<Vec<Child>>>);

impl Workers {
    /// Starts one. The victim tells by a line on its standard output when it begins to work on a message.
    fn start(&self, file: &Path, is_victim: bool) -> Result<Option<ChildStdout>, Failure> {
        let mut workers = lock(&self.0);
        let mut child = start_worker(file, is_victim)?;
        let output = child.stdout.take();
        workers.push(child);
        Ok(output)
    }

    /// Kills the victim when it next begins to work on a message.
    fn kill_victim(&self, begun: &Receiver<()>) {
        begun.try_iter().for_each(drop);
        let _ = begun.recv_timeout(Duration::from_secs(2));
        lock(&self.0).first_mut().map(end);
    }

    fn end_all(&self) {
        lock(&self.0).drain(..).for_each(|mut child| end(&mut child));
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Tells when the victim begins to work on a message.
fn beginnings(output: ChildStdout) -> Receiver<()> {
    let (begins, begun) = mpsc::channel();
    std::thread::spawn(move || {
        for _ in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = begins.send(());
        }
    });
    begun
}

/// Workers end with the demo.
struct EndWorkers(Workers);

impl Drop for EndWorkers {
    fn drop(&mut self) {
        self.0.end_all();
    }
}

/// A folder that goes with the demo.
struct Folder(Option<PathBuf>);

impl Folder {
    fn remove(&self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.remove();
    }
}

fn place(options: &Demo) -> Result<(PathBuf, Folder), Failure> {
    if let Some(file) = &options.file {
        return Ok((file.clone(), Folder(None)));
    }
    let folder = std::env::temp_dir().join(format!("postbox-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::Other(format!("cannot make {}: {error}", folder.display())))?;
    Ok((folder.join("demo.db"), Folder(Some(folder))))
}

fn start_worker(file: &Path, is_slow: bool) -> Result<Child, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::Other(format!("where am I? {error}")))?;
    let mut command = Command::new(program);
    if is_slow {
        command.env(SLOW, "1");
    }
    command
        .args(["--url", &url(file), "demo-worker"])
        // Closed when this process ends, whatever ends it: see `work`.
        .stdin(Stdio::piped())
        .stdout(if is_slow { Stdio::piped() } else { Stdio::null() })
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Failure::Other(format!("cannot start a worker: {error}")))
}

fn url(file: &Path) -> String {
    format!("sqlite://{}/demo", file.display())
}

#[derive(Default)]
struct Seen {
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
    let (file, folder) = place(options)?;
    let (workers, of_handler) = (Workers::default(), Folder(folder.0.clone()));
    let ending = workers.clone();
    on_interrupt("", json, move || {
        // The lock is kept: no worker is started from here on.
        let mut workers = lock(&ending.0);
        workers.iter_mut().for_each(end);
        of_handler.remove();
        output::failed(&Failure::Interrupted("interrupted before the demo was complete"), json);
        std::process::exit(130);
    })?;
    let workers = EndWorkers(workers);
    let mailbox = open(&url(&file))?;
    mailbox.create().blocking()?;
    if !json {
        output::line(format!(
            "{} requests to {} worker processes through {}.\nOne worker is killed (kill -9) in the middle of its work; every {POISON}th request is poison.",
            options.requests,
            options.workers,
            file.display()
        ))?;
    }
    let begun = workers.0.start(&file, true)?.map(beginnings);
    for _ in 1..options.workers {
        workers.0.start(&file, false)?;
    }
    let victim = Mutex::new(begun);
    let progress = progress(u64::from(options.requests), "answered");
    let (next, start, seen) = (AtomicU32::new(0), Instant::now(), Mutex::new(Seen::default()));
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let client = || -> Result<(), Failure> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= options.requests {
                    return Ok(());
                }
                // A third of the way: a worker dies with messages in its hands, and another takes its place.
                if number == options.requests / 3 {
                    if let Some(begun) = lock(&victim).take() {
                        workers.0.kill_victim(&begun);
                    }
                    workers.0.start(&file, false)?;
                }
                let is_poison = number % POISON == POISON - 1;
                let body = if is_poison { "poison".to_string() } else { number.to_string() };
                let asked = Instant::now();
                let reply = mailbox.send_expecting_reply(&body.into()).blocking()?;
                if is_poison {
                    // Nobody will answer it; it ends as a dead letter.
                    continue;
                }
                let answer = reply.wait().timeout(Duration::from_secs(60)).blocking();
                let mut seen = lock(&seen);
                match answer {
                    Ok(answer) => {
                        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
                        let right = answer["answer"] == json!(u64::from(number) * u64::from(number));
                        seen.answered += u32::from(right);
                        seen.wrong += u32::from(!right);
                        seen.redelivered += u32::from(answer["delivery"].as_u64() > Some(1));
                        seen.latencies.push(asked.elapsed());
                        progress.inc(1);
                    }
                    Err(Error::ReplyTimeout { .. } | Error::ReplyExpired { .. }) => seen.unanswered += 1,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().filter_map(|client| client.join().ok()).collect()
    });
    results.into_iter().collect::<Result<(), Failure>>()?;
    let elapsed = start.elapsed();
    // Poison has a few attempts before it is given up.
    let poison = options.requests / POISON;
    let patience = Instant::now() + Duration::from_secs(30);
    let mut counts = mailbox.counts().blocking()?;
    while (counts.dead < u64::from(poison) || counts.total() > 0) && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(50));
        counts = mailbox.counts().blocking()?;
    }
    progress.finish_and_clear();
    drop(workers);
    report(options, &lock(&seen), counts.dead, elapsed, json)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn report(options: &Demo, seen: &Seen, dead: u64, elapsed: Duration, json: bool) -> Result<(), Failure> {
    let mut latencies = seen.latencies.clone();
    latencies.sort_unstable();
    let at =
        |share: f64| latencies.get(((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1)));
    let millis = |share: f64| at(share).map_or(0.0, |latency| latency.as_secs_f64() * 1000.0);
    let (p50, p99) = (millis(0.5), millis(0.99));
    let rate = f64::from(seen.answered) / elapsed.as_secs_f64();
    let lost = i64::from(options.requests) - i64::from(seen.answered) - i64::from(seen.wrong) - dead as i64;
    if json {
        output::line(json!({
            "sent": options.requests, "answered": seen.answered, "redelivered": seen.redelivered, "dead_lettered": dead,
            "lost": lost, "answers_per_s": rate, "p50_ms": p50, "p99_ms": p99,
        }))?;
    } else {
        output::line(format!(
            "\n  sent            {:>8}\n  answered        {:>8}\n  redelivered     {:>8}   after a worker was killed\n  \
             dead-lettered   {:>8}   poison, given up after 3 attempts\n  lost            {:>8}\n\n  \
             {rate:.0} answers a second, latency p50 {p50:.1} ms, p99 {p99:.1} ms",
            options.requests, seen.answered, seen.redelivered, dead, lost
        ))?;
    }
    if lost == 0 && seen.wrong == 0 && seen.unanswered == 0 {
        Ok(())
    } else {
        Err(Failure::Other(format!("{lost} requests lost, {} answers wrong: this should not happen", seen.wrong)))
    }
}
