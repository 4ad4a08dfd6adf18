//! The commands.

use std::io::Read as _;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use clap::CommandFactory as _;
use postbox::{Cancellation, Counts, Error};
use serde_json::{Map, Value, json};

use crate::arguments::{Arguments, Command, Dead, Receive, Request, Send};
use crate::output::{self, Failure, Shown};
use crate::plain::Mailbox;
use crate::{bench, demo, process, transfer, work};

pub(crate) fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { url, json, command } = arguments;
    match command {
        Command::Send(options) => send(&open(&url)?, options, json),
        // Who waits may be there first.
        Command::Receive(options) if options.wait.is_zero() => receive(&open_existing(&url)?, &options, json),
        Command::Receive(options) => receive(&open(&url)?, &options, json),
        Command::Request(options) => request(&open(&url)?, options, json),
        Command::Work(options) => work::run(&open(&url)?, options, json),
        Command::Stats { watch } => stats(&open_existing(&url)?, watch, json),
        Command::Peek { max } => peek(&open_existing(&url)?, max, json),
        Command::Purge => {
            let many = open_existing(&url)?.purge().blocking()?;
            output::line(if json { json!({ "purged": many }).to_string() } else { format!("{many} messages removed") })
        }
        Command::Dead(command) => dead(&open_existing(&url)?, &command, json),
        Command::List => {
            check_file(&url)?;
            for name in postbox::connect(without_mailbox(url)).blocking()?.list().blocking()? {
                output::line(if json { json!({ "mailbox": name.as_str() }).to_string() } else { name.to_string() })?;
            }
            Ok(())
        }
        Command::Move { from, to, max } => transfer::run(&from, &to, max, json),
        Command::Demo(options) => demo::run(&options, json),
        Command::DemoWorker => demo::work(&open(&url)?),
        Command::Bench { concurrency, time } => bench::run(&open(&url)?, concurrency, time, json),
        Command::Completions { shell } => {
            // Written at once: the generator panics if it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "postbox", &mut script);
            output::bytes(&script)
        }
    }
}

pub(crate) fn open(url: &str) -> Result<Mailbox, Failure> {
    Ok(postbox::open(url).blocking()?)
}

/// The same, for commands that only look or take: a file that is not there is a slip, and is not made.
pub(crate) fn open_existing(url: &str) -> Result<Mailbox, Failure> {
    check_file(url)?;
    open(url)
}

fn check_file(url: &str) -> Result<(), Failure> {
    let place = url.split('?').next().unwrap_or_default();
    let Some((scheme, path)) = place.split_once("://") else { return Ok(()) };
    if !scheme.eq_ignore_ascii_case("sqlite") {
        return Ok(());
    }
    let file = path.rsplit_once('/').map_or(path, |(file, _)| file);
    // What else may be wrong with it, and what percent signs stand for, the library knows.
    let folder = std::path::Path::new(file).parent().filter(|folder| !folder.as_os_str().is_empty());
    if file.is_empty() || path.contains('%') || folder.is_some_and(|folder| !folder.is_dir()) {
        return Ok(());
    }
    if [path, file].iter().any(|file| std::path::Path::new(file).exists()) {
        return Ok(());
    }
    Err(Failure::Other(format!("there is no file {file:?}; sending to a mailbox in it makes it")))
}

/// A place is listed whether its URI goes on with the name of a mailbox or not.
fn without_mailbox(url: String) -> String {
    let (place, options) = url.split_once('?').unwrap_or((&url, ""));
    let file = place.strip_prefix("sqlite://").and_then(|place| Some(place.rsplit_once('/')?.0));
    match file {
        Some(file) if std::path::Path::new(file).is_file() => format!("sqlite://{file}?{options}"),
        Some(_) => url,
        None => match place.split_once("://") {
            Some((scheme @ ("redis" | "rediss" | "redis+cluster" | "redis+sentinel" | "sqs"), rest)) => {
                // A password may have a slash: what is before the `@` stays as it is.
                let (secret, host) =
                    rest.rsplit_once('@').map_or(("", rest), |(_, host)| (&rest[..rest.len() - host.len()], host));
                let host = host.split('/').next().unwrap_or_default();
                format!("{scheme}://{secret}{host}?{options}")
            }
            _ => url,
        },
    }
}

/// Held while an interruption is dealt with.
static DEALING: Mutex<()> = Mutex::new(());

/// The program does not end before it has said what an interruption does.
pub(crate) fn after_interrupt() {
    drop(DEALING.lock());
}

/// On Ctrl-C, and on a request to end: acts, and says what happens now. The second time it is meant at once.
pub(crate) fn on_interrupt(
    note: &'static str,
    json: bool,
    mut act: impl FnMut() + std::marker::Send + 'static,
) -> Result<(), Failure> {
    let mut is_raised = false;
    ctrlc::set_handler(move || {
        if std::mem::replace(&mut is_raised, true) {
            process::exit_at_once(130);
        }
        let _dealing = DEALING.lock();
        act();
        if !note.is_empty() {
            output::note(note, json);
        }
    })
    .map_err(|error| Failure::Other(format!("cannot listen for Ctrl-C: {error}")))
}

fn input() -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut body);
    read.map_err(|error| Failure::Other(format!("cannot read standard input: {error}")))?;
    Ok(body)
}

fn send(mailbox: &Mailbox, options: Send, json: bool) -> Result<(), Failure> {
    let body = match (options.body, options.file) {
        (Some(body), _) => body.into_bytes(),
        (None, Some(path)) => {
            std::fs::read(&path).map_err(|error| Failure::Other(format!("cannot read {}: {error}", path.display())))?
        }
        (None, None) => input()?,
    };
    if !options.lines {
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
        return output::line(if json { json!({ "id": id }).to_string() } else { id.to_string() });
    }
    let lines: Vec<Bytes> =
        body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(Bytes::copy_from_slice).collect();
    let progress = progress(lines.len() as u64, "sent");
    let mut sent = 0u64;
    for batch in lines.chunks(options.batch.clamp(1, mailbox.limits().max_batch)) {
        let mut send = mailbox.send_batch(batch).delay(options.delay.unwrap_or_default());
        for (name, value) in &options.attribute {
            send = send.attribute(name, value);
        }
        if let Some(address) = &options.reply_to {
            send = send.reply_to(address);
        }
        if let Some(group) = &options.group {
            send = send.group(group);
        }
        for result in send.blocking()? {
            result.inspect_err(|_| progress.abandon())?;
            sent += 1;
        }
        progress.set_position(sent);
    }
    progress.finish_and_clear();
    output::line(if json { json!({ "sent": sent }).to_string() } else { format!("{sent} messages sent") })
}

/// A bar on the terminal; nothing where there is none.
pub(crate) fn progress(many: u64, what: &'static str) -> indicatif::ProgressBar {
    let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({per_sec}, {eta} left)");
    indicatif::ProgressBar::new(many)
        .with_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()))
        .with_message(what)
}

fn show(message: &postbox::Message<Bytes, Bytes, crate::plain::Plain>, json: bool) -> Result<(), Failure> {
    if !json {
        return output::bytes(&message.body);
    }
    let mut object = Shown::message(message).to_json();
    object.insert("receipt_handle".into(), json!(message.receipt_handle));
    output::line(Value::Object(object))
}

fn receive(mailbox: &Mailbox, options: &Receive, json: bool) -> Result<(), Failure> {
    let interrupted = Cancellation::new();
    let (closing, token) = (mailbox.clone(), interrupted.clone());
    on_interrupt("what was not printed is given back; Ctrl-C again ends at once", json, move || {
        token.cancel();
        // A wait ends at once.
        closing.close();
    })?;
    let wait = if options.follow { Duration::from_secs(20).max(options.wait) } else { options.wait };
    let mut received = 0usize;
    loop {
        let receive =
            mailbox.receive().max_messages(options.max).visibility_timeout(options.visibility).wait_time(wait);
        let messages = match receive.blocking() {
            Err(Error::Closed { .. }) => return Ok(()),
            other => other?,
        };
        received += messages.len();
        for (at, message) in messages.iter().enumerate() {
            // What was not printed is somebody else's.
            let shown = if interrupted.is_cancelled() { Err(Failure::Closed) } else { show(message, json) };
            if let Err(failure) = shown {
                for message in &messages[at..] {
                    message.release().blocking()?;
                }
                return Err(failure);
            }
            if (options.ack || options.follow) && !message.expects_reply() {
                message.acknowledge().blocking()?;
            }
        }
        if interrupted.is_cancelled() {
            return Ok(());
        }
        if !options.follow {
            return if received > 0 {
                Ok(())
            } else {
                Err(Failure::Nothing("there is no message (--wait 20s waits for one)"))
            };
        }
    }
}

fn request(mailbox: &Mailbox, options: Request, json: bool) -> Result<(), Failure> {
    let body = match options.body {
        Some(body) => body.into_bytes(),
        None => input()?,
    };
    let request = mailbox.send_expecting_reply(&body.into()).reply_timeout(options.timeout);
    let reply = request.blocking()?;
    match reply.wait().timeout(options.timeout).blocking() {
        Ok(answer) if json => {
            let mut object = Map::from_iter([("id".into(), json!(reply.id()))]);
            output::put_body(&mut object, "reply", &answer);
            output::line(Value::Object(object))
        }
        Ok(answer) => output::bytes(&answer),
        Err(Error::ReplyTimeout { .. } | Error::ReplyExpired { .. }) => {
            Err(Failure::Nothing("no reply in time: is a worker running? (postbox work -- COMMAND)"))
        }
        Err(error) => Err(error.into()),
    }
}

fn stats(mailbox: &Mailbox, watch: bool, json: bool) -> Result<(), Failure> {
    let interrupted = Cancellation::new();
    if watch {
        let token = interrupted.clone();
        on_interrupt("", json, move || token.cancel())?;
    }
    let mut before: Option<Counts> = None;
    loop {
        let counts = mailbox.counts().blocking()?;
        if before != Some(counts) || !watch {
            let mailbox = mailbox.name().as_str();
            let Counts { ready, delayed, in_flight, dead, .. } = counts;
            output::line(if json {
                json!({ "mailbox": mailbox, "ready": ready, "delayed": delayed, "in_flight": in_flight, "dead": dead })
                    .to_string()
            } else {
                format!("{mailbox}: {ready} ready, {delayed} delayed, {in_flight} in flight, {dead} dead")
            })?;
        }
        before = Some(counts);
        if !watch {
            return Ok(());
        }
        for _ in 0..10 {
            if interrupted.is_cancelled() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn peek(mailbox: &Mailbox, max: usize, json: bool) -> Result<(), Failure> {
    for delivery in mailbox.peek(max).blocking()? {
        output::line(if json {
            Value::Object(Shown::delivery(&delivery).to_json()).to_string()
        } else {
            format!("{}  {}", delivery.id, output::short(&delivery.body))
        })?;
    }
    Ok(())
}

fn dead(mailbox: &Mailbox, command: &Dead, json: bool) -> Result<(), Failure> {
    let dead = mailbox.dead_letters();
    let (verb, many) = match command {
        Dead::List { max } => {
            for letter in dead.list(*max).blocking()? {
                output::line(if json {
                    let mut object = Shown::dead(&letter).to_json();
                    object.insert("reason".into(), json!(letter.reason));
                    object.insert("died_at".into(), output::millis(letter.died_at).into());
                    Value::Object(object).to_string()
                } else {
                    format!(
                        "{}  {} deliveries  {}  {}",
                        letter.id,
                        letter.delivery_count,
                        output::one_line(&letter.reason),
                        output::short(&letter.body)
                    )
                })?;
            }
            return Ok(());
        }
        Dead::Redrive { max } => ("redriven", dead.redrive(max.unwrap_or(usize::MAX)).blocking()?),
        Dead::Purge => ("purged", dead.purge().blocking()?),
    };
    output::line(if json { json!({ verb: many }).to_string() } else { format!("{many} dead letters {verb}") })
}
