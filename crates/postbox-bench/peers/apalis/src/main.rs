//! `postbox-bench-apalis FILE LEVEL` runs cycles of apalis-sqlite, one at a time, for the suite `sqlite`.
//!
//! A cycle executes the same statements and transactions as an apalis worker for one task: push, fetch, lock, acknowledge.
//! A real worker is slower, since it polls at intervals. apalis keeps the rows of finished tasks, so they are deleted between
//! the measurements.

use std::time::{Duration, Instant};

use apalis_core::backend::TaskResult;
use apalis_core::task::Task;
use apalis_core::task::status::Status;
use apalis_core::worker::context::WorkerContext;
use apalis_sqlite::queries::{ack_tasks, fetch_next, lock_tasks, push_tasks, register_worker};
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

async fn open(file: &str, level: &str) -> Outcome<SqlitePool> {
    // One permanent connection, because the durability level is a setting of the connection.
    let options = SqlitePoolOptions::new().min_connections(1).max_connections(1).idle_timeout(None).max_lifetime(None);
    let pool = options.connect_with(SqliteConnectOptions::new().filename(file).create_if_missing(true)).await?;
    SqliteStorage::setup(&pool).await?;
    // Its own setup turns it off.
    let pragma = if level == "full" { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
    sqlx::query(pragma).execute(&pool).await?;
    Ok(pool)
}

async fn cycles(pool: &SqlitePool, config: &Config, worker: &WorkerContext, many: usize) -> Outcome<Duration> {
    let start = Instant::now();
    for _ in 0..many {
        let mut sending = pool.begin().await?;
        push_tasks(&mut *sending, config.queue.as_ref(), &[Task::new(vec![b'x'; 64])]).await?;
        sending.commit().await?;
        let mut receiving = pool.begin().await?;
        let tasks = fetch_next(&mut *receiving, config, worker).await?;
        receiving.commit().await?;
        let task = tasks.first().ok_or("nothing fetched")?;
        let id = task.task_id().ok_or("a task without an id")?.clone();
        let mut locking = pool.begin().await?;
        lock_tasks(&mut *locking, &[id.to_string()], worker.name()).await?;
        locking.commit().await?;
        let done = TaskResult { task_id: id, attempt: 1, status: Status::Done, result: Ok(Default::default()) };
        let mut finishing = pool.begin().await?;
        if ack_tasks(&mut *finishing, &[&done], worker.name()).await? != 1 {
            return Err("not acknowledged".into());
        }
        finishing.commit().await?;
    }
    let took = start.elapsed();
    sqlx::query("DELETE FROM Jobs").execute(pool).await?;
    Ok(took)
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, level] = arguments.as_slice() else { return Err("usage: postbox-bench-apalis FILE LEVEL".into()) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let pool = runtime.block_on(open(file, level))?;
    let (config, worker) = (Config::default().queue("jobs").batch_size(1), WorkerContext::new("bench"));
    runtime.block_on(register_worker(&pool, &config, &worker, "SqliteStorage"))?;
    println!("ready");
    for line in std::io::stdin().lines() {
        let took = runtime.block_on(cycles(&pool, &config, &worker, line?.parse()?))?;
        println!("{}", took.as_nanos());
    }
    Ok(())
}
