//! The commands.

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
        // A receiver that waits may be there before the first sender.
        Command::Receive(options) if options.wait.is_zero() && !options.follow => {
            receive::run(&open_existing(&url)?, &options, json)
        }
        Command::Receive(options) => receive::run(&open(&url)?, &options, json),
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
    let handler = move || {
        if std::mem::replace(&mut is_raised, true) {
            process::exit_at_once(130);
        }
        let _dealing = DEALING.lock();
        act();
        if !note.is_empty() {
            output::note(note, json);
        }
    };
    signals::with_hangup_as_it_is(|| ctrlc::set_handler(handler))
        .map_err(|error| Failure::Other(format!("cannot listen for Ctrl-C: {error}")))
}

/// A bar on the terminal; nothing where there is none.
pub(crate) fn progress(many: u64, what: &'static str) -> indicatif::ProgressBar {
    let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({per_sec}, {eta} left)");
    indicatif::ProgressBar::new(many)
        .with_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()))
        .with_message(what)
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
