//! `postbox send`: sends one message, or one for each line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use bytes::Bytes;
use postbox::Error;
use postbox::worker::Cancellation;
use serde_json::json;

use crate::arguments::Send;
use crate::commands::on_interrupt;
use crate::output::{self, Failure};
use crate::raw::Mailbox;

pub(crate) fn run(mailbox: &Mailbox, options: Send, json: bool) -> Result<(), Failure> {
    if options.lines {
        return lines(mailbox, &options, json);
    }
    let body = match (options.body, options.file) {
        (Some(body), _) => body.into_bytes(),
        (None, Some(path)) => std::fs::read(&path).map_err(|error| cannot_read(&path, &error))?,
        (None, None) => input()?,
    };
    let mut send = mailbox.send(&body.into()).delay(options.delay.unwrap_or_default());
    for (name, value) in options.attribute {
        send = send.attribute(name, value);
    }
    if let Some(address) = options.reply_to {
        send = send.reply_to(address);
    }
    if let Some(group) = options.group {
        send = send.group(group);
    }
    if let Some(id) = options.deduplication_id {
        send = send.deduplication_id(id);
    }
    let id = send.blocking()?;
    output::line(if json { json!({ "id": id }).to_string() } else { id.to_string() })
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("cannot read {}: {error}", path.display()))
}

fn cannot_read_input(error: &io::Error) -> Failure {
    Failure::Other(format!("cannot read standard input: {error}"))
}

/// Reads all of standard input.
pub(crate) fn input() -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    io::stdin().lock().read_to_end(&mut body).map_err(|error| cannot_read_input(&error))?;
    Ok(body)
}

/// Values that the reading thread and the interrupt handler send to the sending thread.
enum Input {
    Line(Bytes),
    End(Result<(), Failure>),
    /// The command was interrupted.
    Interrupted,
}

/// Sends lines as soon as they are read. Lines that are available at the same time are sent in one batch.
fn lines(mailbox: &Mailbox, options: &Send, json: bool) -> Result<(), Failure> {
    let size = options.batch.clamp(1, mailbox.limits().max_batch);
    let interrupted = Cancellation::new();
    let input = read_lines(options.file.clone(), size, &interrupted, json)?;
    let style = indicatif::ProgressStyle::with_template("{spinner} {pos} sent ({per_sec})");
    let progress = indicatif::ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_spinner()));
    let mut sent = 0;
    let ended = loop {
        let (batch, end) = next_batch(&input, size, &interrupted);
        let result = send_batch(mailbox, options, &batch, &mut sent);
        progress.set_position(sent);
        match (result, end) {
            (Err(error), _) => break Err(error.into()),
            (Ok(()), Some(end)) => break end,
            (Ok(()), None) => {}
        }
    };
    progress.finish_and_clear();
    output::line(if json { json!({ "sent": sent }).to_string() } else { format!("{sent} messages sent") })?;
    ended?;
    match interrupted.is_cancelled() {
        true => Err(Failure::Interrupted("interrupted before the end of the input")),
        false => Ok(()),
    }
}

/// Starts a thread that reads lines and skips empty ones. The thread waits while two batches are read and not sent.
fn read_lines(
    file: Option<PathBuf>,
    size: usize,
    interrupted: &Cancellation,
    json: bool,
) -> Result<Receiver<Input>, Failure> {
    let mut source: Box<dyn BufRead + std::marker::Send> = match &file {
        Some(path) => Box::new(BufReader::new(File::open(path).map_err(|error| cannot_read(path, &error))?)),
        None => Box::new(BufReader::new(io::stdin())),
    };
    let (lines, input) = mpsc::sync_channel(2 * size);
    let (token, waker) = (interrupted.clone(), lines.clone());
    on_interrupt("sending the lines that were read; press Ctrl-C again to exit at once", json, move || {
        token.cancel();
        // If the channel is full, the sending thread is not waiting and needs no wake-up.
        let _ = waker.try_send(Input::Interrupted);
    })?;
    let interrupted = interrupted.clone();
    let read = move || {
        while !interrupted.is_cancelled() {
            let mut line = Vec::new();
            let next = match source.read_until(b'\n', &mut line) {
                Ok(0) => Input::End(Ok(())),
                Ok(_) if line == b"\n" => continue,
                Ok(_) => {
                    line.pop_if(|last| *last == b'\n');
                    Input::Line(line.into())
                }
                Err(error) => Input::End(Err(match &file {
                    Some(path) => cannot_read(path, &error),
                    None => cannot_read_input(&error),
                })),
            };
            let is_end = matches!(next, Input::End(_));
            if lines.send(next).is_err() || is_end {
                break;
            }
        }
    };
    thread::Builder::new()
        .spawn(read)
        .map_err(|error| Failure::Other(format!("cannot start the input thread: {error}")))?;
    Ok(input)
}

/// Waits for a line and takes up to `size` lines that are available. The second value is set at the end of the input.
fn next_batch(
    input: &Receiver<Input>,
    size: usize,
    interrupted: &Cancellation,
) -> (Vec<Bytes>, Option<Result<(), Failure>>) {
    let mut batch = Vec::new();
    let mut next = match interrupted.is_cancelled() {
        true => input.try_recv().ok(),
        false => Some(input.recv().unwrap_or(Input::End(Ok(())))),
    };
    loop {
        match next {
            Some(Input::Line(line)) => batch.push(line),
            Some(Input::End(end)) => return (batch, Some(end)),
            Some(Input::Interrupted) => {}
            None => return (batch, interrupted.is_cancelled().then_some(Ok(()))),
        }
        if batch.len() == size {
            return (batch, None);
        }
        next = input.try_recv().ok();
    }
}

fn send_batch(mailbox: &Mailbox, options: &Send, lines: &[Bytes], sent: &mut u64) -> Result<(), Error> {
    let mut send = mailbox.send_batch(lines).delay(options.delay.unwrap_or_default());
    for (name, value) in &options.attribute {
        send = send.attribute(name, value);
    }
    if let Some(address) = &options.reply_to {
        send = send.reply_to(address);
    }
    if let Some(group) = &options.group {
        send = send.group(group);
    }
    let results = send.blocking()?;
    *sent += results.iter().filter(|result| result.is_ok()).count() as u64;
    results.into_iter().try_for_each(|result| result.map(drop))
}
