//! An HTTP service that enqueues a job in its handler, and works on the jobs in the same program.
//!
//! ```text
//! cargo run --example axum_jobs
//! curl --data cat.png http://127.0.0.1:8080/images    # 202, and the id of the job
//! curl http://127.0.0.1:8080/stats
//! ```
//!
//! With another mailbox, `axum_jobs 127.0.0.1:8080 sqlite://jobs.db/images`, accepted jobs survive the
//! program.

use std::error::Error;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use postbox::{Context, HandlerError, Mailbox, Worker};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A mailbox is a cheap handle, so each request has its own.
async fn enqueue(State(images): State<Mailbox<String>>, image: String) -> Result<(StatusCode, String), StatusCode> {
    match images.send(&image).await {
        Ok(id) => Ok((StatusCode::ACCEPTED, format!("{id}\n"))),
        // A full mailbox or a lost connection: the client may try again.
        Err(error) if error.is_transient() => Err(StatusCode::SERVICE_UNAVAILABLE),
        Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

async fn stats(State(images): State<Mailbox<String>>) -> Result<String, StatusCode> {
    let counts = images.counts().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(format!("ready: {}\nin flight: {}\ndead: {}\n", counts.ready, counts.in_flight, counts.dead))
}

async fn resize(image: String, _context: Context) -> Result<(), HandlerError> {
    if !image.ends_with(".png") {
        return Err(HandlerError::permanent("not a PNG"));
    }
    println!("resized {image}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".into());
    let uri = arguments.next().unwrap_or_else(|| "memory://images".into());
    let images: Mailbox<String> = postbox::open(&uri).await?;

    let worker = Worker::new(&images, resize).concurrency(4);
    let handle = worker.handle();
    let working = tokio::spawn(async move { worker.run().await });

    let service = Router::new().route("/images", post(enqueue)).route("/stats", get(stats)).with_state(images);
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    axum::serve(listener, service)
        .with_graceful_shutdown(async move {
            terminate.recv().await;
        })
        .await?;

    // No request comes any more. What the worker has begun, it finishes.
    handle.shutdown();
    let report = working.await??;
    println!("{} succeeded, {} dead", report.succeeded, report.dead_lettered);
    Ok(())
}
