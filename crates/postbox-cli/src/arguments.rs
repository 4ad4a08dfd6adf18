//! What can be asked of the command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

const DEFAULT: &str = "sqlite://postbox.db/default";
const AFTER: &str = "\
Times are written 500ms, 2.5s, 3m or 1h.

Exit status: 0 all went well, 1 it failed, 2 the arguments are wrong, 3 there was no message or no reply in time,
130 it was interrupted before it was done.";

/// One mailbox, from actor to cloud.
///
/// Every command works on the mailbox that --url names; without it, on the file postbox.db in the current folder.
#[derive(Debug, Parser)]
#[command(name = "postbox", version, propagate_version = true, arg_required_else_help = true, after_long_help = AFTER)]
pub(crate) struct Arguments {
    /// Which mailbox: sqlite://FILE/NAME, redis://HOST/NAME, sqs://REGION/NAME…; memory://NAME is gone with the command
    // An address may have a password: help does not show what the variable holds.
    #[arg(short, long, global = true, env = "POSTBOX_URL", hide_env_values = true, default_value = DEFAULT)]
    pub(crate) url: String,
    /// Writes JSON, one object a line, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Stores a message: the argument, a file, or standard input
    Send(Send),
    /// Leases messages and prints them
    ///
    /// Leases are kept alive while the reader of the output is slow. A message whose lease was lost before it was printed is not
    /// printed: it is delivered again. With --ack and --follow messages are acknowledged, but requests, whose replies are
    /// awaited, are not: with --follow each is printed once, stays leased, and is given back at the end.
    Receive(Receive),
    /// Sends a request, waits for its reply and prints that
    Request(Request),
    /// Runs a program for each message: body on its standard input, standard output is the reply
    ///
    /// Exit status 0 finishes the message, 65 or 78 sends it to the dead letters at once; after any other, or a signal, it
    /// is tried again until the attempts are used up. A program that cannot be started gives its message back. Ctrl-C lets
    /// the programs that run finish, within --shutdown-limit, and gives the rest back. A program that runs longer, or whose
    /// lease is lost, is ended with all processes of its process group: by SIGTERM, and by SIGKILL 5 s later.
    Work(Work),
    /// Says how many messages are where
    Stats {
        /// Again and again, until Ctrl-C
        #[arg(long)]
        watch: bool,
    },
    /// Shows messages without leasing them
    Peek {
        /// The most messages
        #[arg(long, default_value_t = 10, value_parser = number::<usize>)]
        max: usize,
    },
    /// Removes all messages, but no dead letters
    Purge,
    /// Looks after messages that nobody could finish
    #[command(subcommand)]
    Dead(Dead),
    /// Lists the mailboxes of the place that --url names, with or without a mailbox
    List,
    /// Moves all messages from one mailbox to another, of any kind; nothing is lost when interrupted
    ///
    /// Ids, bodies, content types, attributes, reply addresses and times of sending go along; groups, deduplication ids,
    /// expiry and delivery counts do not. Delayed, leased and dead messages stay where they are, and so do requests, whose
    /// replies are awaited there, and messages that the target does not take, as when it has another message with the same id.
    Move {
        /// The mailbox to take from, like sqlite://old.db/jobs
        from: String,
        /// The mailbox to send to, like sqlite://new.db/jobs
        to: String,
        /// The most messages
        #[arg(long, value_parser = number::<u64>)]
        max: Option<u64>,
    },
    /// Shows what Postbox is for: workers answer requests, one is killed, nothing is lost
    Demo(Demo),
    /// Measures send, receive, acknowledge in the store that --url names
    ///
    /// The benchmark creates a mailbox of its own, named after the one in --url (default-bench-1a2b3c4d5e6f), and deletes it at
    /// the end, after an error and on Ctrl-C. It does not read or change the messages of any other mailbox.
    Bench {
        /// Number of cycles that run at the same time
        #[arg(long, default_value_t = 64, value_parser = number::<usize>)]
        concurrency: usize,
        /// How long to measure
        #[arg(long, default_value = "3s", value_name = "TIME", value_parser = duration)]
        time: Duration,
    },
    /// Prints completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    #[command(hide = true, name = "demo-worker")]
    DemoWorker,
}

#[derive(Debug, Args)]
pub(crate) struct Send {
    /// The body; without it, --file or standard input
    pub(crate) body: Option<String>,
    /// The body is in this file
    #[arg(long, conflicts_with = "body")]
    pub(crate) file: Option<PathBuf>,
    /// One message per line, sent as it comes; empty lines are left out
    #[arg(long, conflicts_with = "body")]
    pub(crate) lines: bool,
    /// Sends at most this many lines in one request
    #[arg(long, default_value_t = 100, value_parser = number::<usize>)]
    pub(crate) batch: usize,
    /// How long messages are invisible
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// Where an answer should go: the name of a mailbox of the same file
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) reply_to: Option<String>,
    /// An attribute of the message; as often as needed
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attribute: Vec<(String, String)>,
    /// Delivered in order, one at a time, with the others of this group
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Sends with the same id within five minutes are one
    #[arg(long, value_name = "ID", conflicts_with = "lines")]
    pub(crate) deduplication_id: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Receive {
    /// The most messages of one receive
    #[arg(long, default_value_t = 1, value_parser = number::<usize>)]
    pub(crate) max: usize,
    /// How long messages are leased
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration)]
    pub(crate) visibility: Duration,
    /// Waits so long for the first one
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Duration,
    /// Acknowledges each message once it is printed
    #[arg(long)]
    pub(crate) ack: bool,
    /// Goes on until Ctrl-C; what is printed is acknowledged, requests and the rest are given back
    #[arg(long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Request {
    /// The body; without it, standard input
    pub(crate) body: Option<String>,
    /// Waits so long for the reply
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Work {
    /// The most programs at a time
    #[arg(long, default_value_t = 1, value_parser = number::<usize>)]
    pub(crate) concurrency: usize,
    /// How long messages are leased; longer while their program runs
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub(crate) visibility: Duration,
    /// The attempts before a message goes to the dead letters
    #[arg(long, default_value_t = 5, value_parser = number::<u32>)]
    pub(crate) retries: u32,
    /// The first retry comes after so long, each further one after twice the time
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = duration)]
    pub(crate) backoff: Duration,
    /// Time for programs to finish after Ctrl-C; then they are ended and their messages are given back
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration)]
    pub(crate) shutdown_limit: Duration,
    /// Ends after this number of receives
    #[arg(long, value_parser = number::<u64>)]
    pub(crate) max_iterations: Option<u64>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    /// Shows them, oldest first
    List {
        /// The most messages
        #[arg(long, default_value_t = 100, value_parser = number::<usize>)]
        max: usize,
    },
    /// Makes them visible again, oldest first, as if never delivered
    Redrive {
        /// The most messages
        #[arg(long, value_parser = number::<usize>)]
        max: Option<usize>,
    },
    /// Removes them
    Purge,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The number of requests
    #[arg(long, default_value_t = 2_000, value_parser = number::<u32>)]
    pub(crate) requests: u32,
    /// The number of worker processes; one of them is killed
    #[arg(long, default_value_t = 3, value_parser = number::<usize>)]
    pub(crate) workers: usize,
    /// Keeps the file, here
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
}

/// `500ms`, `2.5s`, `3m`, `1h`, or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        other if !number.is_empty() => return Err(format!("unknown unit {other:?}: write 500ms, 2.5s, 3m or 1h")),
        _ => 1.0,
    };
    let number: f64 = number.parse().map_err(|_| "not a time: write 500ms, 2.5s, 3m or 1h".to_string())?;
    Duration::try_from_secs_f64(number * factor).map_err(|error| error.to_string())
}

/// A whole number.
fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "write a whole number, like 10".to_string())
}

fn attribute(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.into(), value.into()))
}
