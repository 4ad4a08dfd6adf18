//! A worker with retries and dead letters, on a mailbox in memory: `cargo run --example worker`.

use std::time::Duration;

use postbox::{Backoff, Context, HandlerError, Mailbox, Worker};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Resize {
    image: String,
    width: u32,
}

async fn resize(job: Resize, context: Context) -> Result<String, HandlerError> {
    match job.image.as_str() {
        // Will not get better: to the dead letters at once.
        "corrupt.png" => Err(HandlerError::permanent("not an image")),
        // May get better: the first two attempts fail.
        "slow-disk.png" if context.delivery_count() < 3 => Err(HandlerError::transient("the disk is busy")),
        "bug.png" => panic!("a bug in the handler"),
        image => Ok(format!("{}-{image}", job.width)),
    }
}

fn main() -> Result<(), postbox::Error> {
    let jobs: Mailbox<Resize, String> = postbox::open("memory://resize").blocking()?;
    let mut replies = Vec::new();
    for image in ["cat.png", "corrupt.png", "slow-disk.png", "bug.png"] {
        replies.push((image, jobs.send_expecting_reply(&Resize { image: image.into(), width: 64 }).blocking()?));
    }

    let worker =
        Worker::new(&jobs, resize).concurrency(2).max_attempts(3).backoff(Backoff::fixed(Duration::from_millis(10)));
    let handle = worker.handle();
    let running = std::thread::spawn(move || worker.run().blocking());

    for (image, reply) in replies {
        match reply.wait().timeout(Duration::from_millis(500)).blocking() {
            Ok(answer) => println!("{image}: {answer}"),
            Err(error) => println!("{image}: {error}"),
        }
    }
    handle.shutdown();
    let report = running.join().expect("the loop catches panics")?;
    println!("{} answered, {} tried again, {} dead", report.succeeded, report.retried, report.dead_lettered);

    let dead = jobs.dead_letters();
    for letter in dead.list(10).blocking()? {
        let image = letter.body.as_ref().map(|job| &job.image);
        println!("dead: {image:?} after {} deliveries: {}", letter.delivery_count, letter.reason);
    }
    assert_eq!((report.succeeded, report.dead_lettered), (2, 2));
    Ok(())
}
