//! Runs each command. The larger commands have separate files.

use std::sync::Mutex;
use std::time::Duration;

use clap::CommandFactory as _;
use postbox::worker::Cancellation;
use postbox::{Counts, Error};
use serde_json::{Map, Value, json};

use crate::arguments::{Arguments, Command, Dead, Request};
use crate::output::{self, Failure, Shown};
use crate::raw::Mailbox;
use crate::{bench, demo, process, receive, send, signals, transfer, work};

pub(crate) fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { url, json, command } = arguments;
    match command {
        Command::Send(options) => send::run(&open(&url)?, options, json),
        // A receiver that waits may start before the first sender has created the file.
        Command::Receive(options) if options.wait.is_zero() && !options.follow => {
            receive::run(&open_existing(&url)?, &options, json)
        }
        Command::Receive(options) => receive::run(&open(&url)?, &options, json),
        Command::Request(options) => request(&open(&url)?, options, json),
        Command::Work(options) => work::run(&open(&url)?, options, json),
        Command::Stats { watch } => stats(&open_existing(&url)?, watch, json),
        Command::Peek { max } => peek(&open_existing(&url)?, max, json),
        Command::Purge => {
            let count = open_existing(&url)?.purge().blocking()?;
            output::line(if json {
                json!({ "purged": count }).to_string()
            } else {
                format!("{count} messages removed")
            })
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
            // The generator panics if it cannot write, so it writes to memory.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "postbox", &mut script);
            output::bytes(&script)
        }
    }
}

pub(crate) fn open(url: &str) -> Result<Mailbox, Failure> {
    Ok(postbox::open(url).blocking()?)
}

/// Opens a mailbox for a command that stores nothing. A missing SQLite file is an error, and is not created.
pub(crate) fn open_existing(url: &str) -> Result<Mailbox, Failure> {
    check_file(url)?;
    open(url)
}

/// Fails if the address names a SQLite file that does not exist. Leaves all other errors to the library.
fn check_file(url: &str) -> Result<(), Failure> {
    let address = url.split('?').next().unwrap_or_default();
    let Some((scheme, path)) = address.split_once("://") else { return Ok(()) };
    if !scheme.eq_ignore_ascii_case("sqlite") {
        return Ok(());
    }
    let file = path.rsplit_once('/').map_or(path, |(file, _)| file);
    // The library decodes percent signs and reports a missing file name or folder.
    let folder = std::path::Path::new(file).parent().filter(|folder| !folder.as_os_str().is_empty());
    if file.is_empty() || path.contains('%') || folder.is_some_and(|folder| !folder.is_dir()) {
        return Ok(());
    }
    if [path, file].iter().any(|file| std::path::Path::new(file).exists()) {
        return Ok(());
    }
    Err(Failure::Other(format!("there is no file {file:?}; check --url, or create the file with postbox send")))
}

/// Removes the mailbox name from an address, if it has one. What remains names the store.
fn without_mailbox(url: String) -> String {
    let (address, options) = url.split_once('?').unwrap_or((&url, ""));
    let file = address.strip_prefix("sqlite://").and_then(|path| Some(path.rsplit_once('/')?.0));
    match file {
        Some(file) if std::path::Path::new(file).is_file() => format!("sqlite://{file}?{options}"),
        Some(_) => url,
        None => match address.split_once("://") {
            Some((scheme @ ("redis" | "rediss" | "redis+cluster" | "redis+sentinel" | "sqs"), rest)) => {
                // A password may contain a slash, so the part before the `@` is kept unchanged.
                let (secret, host) =
                    rest.rsplit_once('@').map_or(("", rest), |(_, host)| (&rest[..rest.len() - host.len()], host));
                let host = host.split('/').next().unwrap_or_default();
                format!("{scheme}://{secret}{host}?{options}")
            }
            _ => url,
        },
    }
}

/// Locked while the interrupt handler runs.
static INTERRUPT_HANDLER: Mutex<()> = Mutex::new(());

/// Waits for a running interrupt handler, so that the process does not exit before the handler's note is printed.
pub(crate) fn wait_for_interrupt_handler() {
    drop(INTERRUPT_HANDLER.lock());
}

/// Installs a handler for SIGINT, SIGTERM and SIGHUP. The first signal runs `action` and prints `note`, if it is not
/// empty. A second signal ends the process at once.
pub(crate) fn on_interrupt(
    note: &'static str,
    json: bool,
    mut action: impl FnMut() + std::marker::Send + 'static,
) -> Result<(), Failure> {
    let mut is_raised = false;
    let handler = move || {
        if std::mem::replace(&mut is_raised, true) {
            process::exit_at_once(130);
        }
        let _running = INTERRUPT_HANDLER.lock();
        action();
        if !note.is_empty() {
            output::note(note, json);
        }
    };
    signals::keep_sighup_ignored(|| ctrlc::set_handler(handler))
        .map_err(|error| Failure::Other(format!("cannot install a handler for Ctrl-C: {error}")))
}

/// A progress bar, which is shown only on a terminal.
pub(crate) fn progress(len: u64, message: &'static str) -> indicatif::ProgressBar {
    let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({per_sec}, {eta} left)");
    indicatif::ProgressBar::new(len)
        .with_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()))
        .with_message(message)
}

fn request(mailbox: &Mailbox, options: Request, json: bool) -> Result<(), Failure> {
    let body = match options.body {
        Some(body) => body.into_bytes(),
        None => send::input()?,
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
            Err(Failure::Nothing("no reply within --timeout; check that a worker runs (postbox work -- COMMAND)"))
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
    for message in mailbox.peek(max).blocking()? {
        let shown = Shown::stored(&message)?;
        output::line(if json {
            Value::Object(shown.to_json()).to_string()
        } else {
            format!("{}  {}", message.id, output::short(shown.body))
        })?;
    }
    Ok(())
}

fn dead(mailbox: &Mailbox, command: &Dead, json: bool) -> Result<(), Failure> {
    let dead = mailbox.dead_letters();
    let (verb, many) = match command {
        Dead::List { max } => {
            for letter in dead.list(*max).blocking()? {
                let shown = Shown::stored(&letter)?;
                output::line(if json {
                    let mut object = shown.to_json();
                    object.insert("reason".into(), json!(letter.reason));
                    object.insert("died_at".into(), output::millis(letter.died_at).into());
                    Value::Object(object).to_string()
                } else {
                    format!(
                        "{}  {} deliveries  {}  {}",
                        letter.id,
                        letter.delivery_count,
                        output::one_line(&letter.reason),
                        output::short(shown.body)
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
