//! Suite `sqlite`: durable mailboxes in a file, compared with a hand-written loop of statements, with other file queues, and
//! with the speed of the disk.
//!
//! A cycle sends, receives and acknowledges one message. The hand-written loop uses three transactions for it, and has no
//! expiring leases, no counts and no order of returned messages. Systems named `unsynced-…` are less durable than the level.

mod peers;
mod processes;

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use postbox::sqlite::rusqlite::{Connection as Sqlite, params};
use postbox::sqlite::{SqliteBackend, Synchronous};
use postbox::{Connection, Mailbox, Raw};
use tokio::runtime::{Builder, Runtime};

pub(crate) use self::peers::PEERS;
pub(crate) use self::processes::{ROLE, process};
use crate::report::{Contender, Settings, measure};

const SUITE: &str = "sqlite";
const BODY: &[u8] = &[b'x'; 64];

type Jobs = Mailbox<Bytes, (), Raw>;

/// Runs the whole suite, with files in the current folder.
pub(crate) fn run(settings: &Settings) {
    let folder = Folder::new();
    let levels = [("full", Synchronous::Full), ("normal", Synchronous::Normal)];
    let deep = if settings.quick { 2_000 } else { 1_000_000 };
    for (level, synchronous) in levels {
        for depth in [0, deep] {
            for (tasks, batch, operations) in [(1, 1, 1_000), (64, 1, 3_200), (1, 10, 4_000), (1, 100, 20_000)] {
                // Filling a deep file takes long, so each level has one deep scenario.
                if depth > 0 && (tasks, batch) != (1, 1) {
                    continue;
                }
                let scenario = format!("cycle/{level}/tasks-{tasks}/batch-{batch}/depth-{depth}");
                if !settings.includes(&scenario) {
                    continue;
                }
                let mut contenders = vec![postbox(&folder, synchronous, tasks, batch, depth)];
                if tasks == 1 || depth == 0 {
                    contenders.push(bare(&folder, level, batch, depth));
                }
                if depth == 0 && (tasks, batch) == (1, 1) {
                    contenders.insert(1, blocking(&folder, synchronous));
                    contenders.extend(yaque(&folder, level));
                    contenders.extend(peers::peers(settings, &folder, level));
                }
                if level == "full" {
                    contenders.push(disk(&folder));
                }
                measure(settings, SUITE, &scenario, operations, contenders);
            }
        }
        processes::run(settings, &folder, level);
    }
}

/// A temporary folder, which is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = PathBuf::from(format!("postbox-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the current folder can be written to");
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        self.0.join(format!("{}.db", NUMBER.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).build().expect("a runtime")
}

async fn cycles(jobs: Jobs, batch: usize, cycles: usize) {
    let body = Bytes::from_static(BODY);
    let bodies = vec![body.clone(); batch];
    for _ in 0..cycles.div_ceil(batch) {
        if batch == 1 {
            jobs.send(&body).await.expect("sent");
            for message in jobs.receive().await.expect("received") {
                message.acknowledge().await.expect("acknowledged");
            }
        } else {
            jobs.send_batch(&bodies).await.expect("sent");
            let messages = jobs.receive().max_messages(batch).await.expect("received");
            jobs.acknowledge_batch(&messages).await.expect("acknowledged");
        }
    }
}

fn mailbox(folder: &Folder, synchronous: Synchronous, depth: usize) -> Jobs {
    let backend = SqliteBackend::open_with(folder.file(), synchronous).expect("a file");
    let jobs: Jobs = Connection::new(backend).mailbox("jobs").expect("a mailbox");
    let fill = vec![Bytes::from_static(BODY); 1_000];
    for _ in 0..depth.div_ceil(1_000) {
        jobs.send_batch(&fill).blocking().expect("filled");
    }
    jobs
}

fn postbox(folder: &Folder, synchronous: Synchronous, tasks: usize, batch: usize, depth: usize) -> Contender<'static> {
    let (jobs, runtime) = (mailbox(folder, synchronous, depth), runtime());
    Contender::new("postbox", move |operations| cycles_of_tasks(&runtime, &jobs, tasks, batch, operations))
}

/// Postbox on one thread without a runtime.
fn blocking(folder: &Folder, synchronous: Synchronous) -> Contender<'static> {
    let (jobs, body) = (mailbox(folder, synchronous, 0), Bytes::from_static(BODY));
    Contender::new("postbox-blocking", move |operations| {
        let start = Instant::now();
        for _ in 0..operations {
            jobs.send(&body).blocking().expect("sent");
            for message in jobs.receive().blocking().expect("received") {
                message.acknowledge().blocking().expect("acknowledged");
            }
        }
        start.elapsed()
    })
}

/// Runs cycles that are distributed over tasks, and returns the elapsed time.
fn cycles_of_tasks(runtime: &Runtime, jobs: &Jobs, tasks: usize, batch: usize, operations: usize) -> Duration {
    let start = Instant::now();
    let running: Vec<_> = (0..tasks).map(|_| runtime.spawn(cycles(jobs.clone(), batch, operations / tasks))).collect();
    runtime.block_on(async {
        for task in running {
            task.await.expect("a task");
        }
    });
    start.elapsed()
}

/// The crate `yaque`: segment files for one sender and one receiver. It never syncs. For the level `normal` there is also a
/// variant that saves each acknowledgement, so that it survives the end of the process.
fn yaque(folder: &Folder, level: &str) -> Vec<Contender<'static>> {
    let contender = |system, saves_each: bool| {
        let (base, runtime) = (folder.file(), runtime());
        let mut sender = yaque::Sender::open(&base).expect("a folder");
        let receiver = yaque::ReceiverBuilder::new();
        let receiver = if saves_each { receiver.save_every_nth(Some(1)) } else { receiver };
        let mut receiver = receiver.open(&base).expect("a folder");
        Contender::new(system, move |operations| {
            let start = Instant::now();
            runtime.block_on(async {
                for _ in 0..operations {
                    sender.send(BODY).await.expect("sent");
                    receiver.recv().await.expect("received").commit().expect("acknowledged");
                }
            });
            start.elapsed()
        })
    };
    match level {
        "full" => vec![contender("unsynced-yaque", false)],
        _ => vec![contender("yaque", true), contender("unsynced-yaque", false)],
    }
}

/// A simple hand-written queue: one connection, which executes one statement after the other.
fn bare(folder: &Folder, level: &str, batch: usize, depth: usize) -> Contender<'static> {
    let mut file = open_bare(&folder.file(), level);
    let transaction = file.transaction().expect("a transaction");
    for _ in 0..depth {
        transaction.prepare_cached("INSERT INTO queue (body) VALUES (?1)").unwrap().execute([BODY]).unwrap();
    }
    transaction.commit().expect("filled");
    Contender::new("bare-rusqlite", move |operations| {
        let start = Instant::now();
        for _ in 0..operations.div_ceil(batch) {
            let sending = file.transaction().expect("a transaction");
            for _ in 0..batch {
                sending.prepare_cached("INSERT INTO queue (body) VALUES (?1)").unwrap().execute([BODY]).unwrap();
            }
            sending.commit().expect("sent");
            let receiving = file.transaction().expect("a transaction");
            let mut taken: Vec<i64> = Vec::new();
            {
                let mut select = receiving
                    .prepare_cached("SELECT id, body FROM queue WHERE leased = 0 ORDER BY id LIMIT ?1")
                    .unwrap();
                let rows =
                    select.query_map([batch as i64], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)));
                taken.extend(rows.unwrap().map(|row| row.unwrap().0));
                let mut lease =
                    receiving.prepare_cached("UPDATE queue SET leased = 1, until = ?2 WHERE id = ?1").unwrap();
                taken.iter().for_each(|id| assert_eq!(lease.execute(params![id, 1]).unwrap(), 1));
            }
            receiving.commit().expect("received");
            let finishing = file.transaction().expect("a transaction");
            for id in taken {
                finishing.prepare_cached("DELETE FROM queue WHERE id = ?1").unwrap().execute([id]).unwrap();
            }
            finishing.commit().expect("acknowledged");
        }
        start.elapsed()
    })
}

fn open_bare(path: &Path, level: &str) -> Sqlite {
    let file = Sqlite::open(path).expect("a file");
    let tables =
        "CREATE TABLE queue (id INTEGER PRIMARY KEY, leased INTEGER NOT NULL DEFAULT 0, until INTEGER, body BLOB);
        CREATE INDEX ready ON queue (id) WHERE leased = 0;";
    file.execute_batch(&format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = {level}; {tables}")).expect("tables");
    file
}

/// The limit of a queue that syncs each message: how often the disk confirms a write of one page. Pages are overwritten, as
/// in SQLite's log after it has reached its full size. Appending to a file takes about twice as long.
fn disk(folder: &Folder) -> Contender<'static> {
    const PAGES: usize = 500;
    let mut file = File::create(folder.file()).expect("a file");
    file.write_all(&vec![0; PAGES * 4096]).expect("written");
    file.sync_all().expect("synced");
    Contender::new("limit-fdatasync", move |operations| {
        // A fixed number of pages is enough to measure the rate, whatever the number of cycles.
        let syncs = operations.min(PAGES);
        file.rewind().expect("at the start");
        let start = Instant::now();
        for _ in 0..syncs {
            file.write_all(&[1; 4096]).expect("written");
            file.sync_data().expect("synced");
        }
        start.elapsed().mul_f64(operations as f64 / syncs as f64).max(Duration::from_nanos(1))
    })
}
