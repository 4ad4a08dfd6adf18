//! `postbox work`: a program per message.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use postbox::{Backoff, Context, HandlerError};
use serde_json::json;

use crate::arguments::Work;
use crate::commands::on_interrupt;
use crate::output::{self, Failure};
use crate::plain::Mailbox;

/// Statuses of sysexits.h: the data or the configuration is wrong, and will be; the failure may pass.
const WRONG: [i32; 2] = [65, 78];

pub(crate) fn run(mailbox: &Mailbox, options: Work, json: bool) -> Result<(), Failure> {
    let command = Arc::new(options.command);
    let handler = move |body: Bytes, context: Context| {
        let command = Arc::clone(&command);
        // A thread each: programs run in parallel, whatever this one's executor does.
        let (answer, answered) = std::sync::mpsc::channel();
        let done = postbox::Cancellation::new();
        let told = done.clone();
        std::thread::spawn(move || {
            let _ = answer.send(one(&command, &body, &context));
            told.cancel();
        });
        async move {
            done.cancelled().await;
            answered.recv().unwrap_or_else(|_| Err(HandlerError::transient("the program could not be watched")))
        }
    };
    let mut worker = postbox::Worker::new(mailbox, handler)
        .concurrency(options.concurrency)
        .visibility_timeout(options.visibility)
        .max_attempts(options.retries)
        .backoff(Backoff::exponential(options.backoff, std::time::Duration::from_secs(900)));
    if let Some(most) = options.max_iterations {
        worker = worker.max_iterations(most);
    }
    let handle = worker.handle();
    on_interrupt("what runs is finished, the rest is given back; Ctrl-C again ends at once", json, move || {
        handle.shutdown();
    })?;
    let report = worker.run().blocking()?;
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

/// Runs the program on one message.
fn one(command: &[String], body: &Bytes, context: &Context) -> Result<Bytes, HandlerError> {
    let failed =
        |what: &str, error: std::io::Error| HandlerError::transient(format_args!("{what} {}: {error}", command[0]));
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .env("POSTBOX_MESSAGE_ID", context.message_id().to_string())
        .env("POSTBOX_DELIVERY_COUNT", context.delivery_count().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed("cannot start", error))?;
    if let Some(mut input) = child.stdin.take() {
        let body = body.clone();
        // A program may end without reading all of it.
        std::thread::spawn(move || input.write_all(&body));
    }
    let output = child.wait_with_output().map_err(|error| failed("cannot wait for", error))?;
    match output.status.code() {
        Some(0) => Ok(output.stdout.into()),
        Some(code) if WRONG.contains(&code) => Err(HandlerError::permanent(format_args!("exit status {code}"))),
        Some(code) => Err(HandlerError::transient(format_args!("exit status {code}"))),
        None => Err(HandlerError::transient("ended by a signal")),
    }
}
