//! A worker that ends well when the system asks it to, as `docker stop` and systemd do with SIGTERM.
//!
//! ```text
//! cargo run --example graceful_shutdown -- sqlite://jobs.db/jobs
//! ```
//!
//! After SIGTERM or Ctrl-C no handler begins, and handlers that run have 20 s to end. What was received
//! and not begun is released: it is ready again at once, at its old place, and does not count as delivered.

use std::time::Duration;

use postbox::{Context, HandlerError, Mailbox, Worker};
use tokio::signal::unix::{SignalKind, signal};

async fn work(job: String, _context: Context) -> Result<(), HandlerError> {
    println!("begun {job}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    println!("done {job}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let uri = std::env::args().nth(1).unwrap_or_else(|| "sqlite://jobs.db/jobs".into());
    let jobs: Mailbox<String> = postbox::open(&uri).await?;

    // The handlers are registered before the first job begins: from here no signal ends the program.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let worker = Worker::new(&jobs, work).concurrency(2).prefetch(8).shutdown_timeout(Duration::from_secs(20));
    let handle = worker.handle();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        println!("shutting down");
        handle.shutdown();
    });

    let report = worker.run().await?;
    println!("{} succeeded", report.succeeded);
    Ok(())
}
