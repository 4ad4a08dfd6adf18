//! The arguments of the command and their help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

const DEFAULT: &str = "sqlite://postbox.db/default";
const AFTER: &str = "\
A TIME is a number with a unit: 500ms, 2.5s, 3m or 1h.

Exit status: 0 success, 1 failure, 2 invalid arguments, 3 no message or no reply in time,
130 interrupted before the command was complete.";

/// One mailbox, from actor to cloud.
///
/// Every command works on the mailbox that --url names. The default is the mailbox `default` in the file postbox.db
/// in the current folder.
#[derive(Debug, Parser)]
#[command(name = "postbox", version, propagate_version = true, arg_required_else_help = true, after_long_help = AFTER)]
pub(crate) struct Arguments {
    /// Address of the mailbox: sqlite://FILE/NAME, redis://HOST/NAME, sqs://REGION/NAME…; memory://NAME is lost when the
    /// command ends
    // An address can contain a password, so help does not show the value of the variable.
    #[arg(short, long, global = true, env = "POSTBOX_URL", hide_env_values = true, default_value = DEFAULT)]
    pub(crate) url: String,
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send a message from an argument, a file or standard input
    Send(Send),
    /// Lease messages and print them
    ///
    /// Leases are renewed while the reader of the output is slow. A message whose lease ends before it is printed is not
    /// printed: it is delivered again. With --ack and --follow, messages are acknowledged after they are printed. Requests
    /// that await a reply are not acknowledged. With --follow, a request is printed once, stays leased, and is released when
    /// the command ends.
    Receive(Receive),
    /// Send a request, wait for its reply and print the reply
    Request(Request),
    /// Run a program for each message
    ///
    /// The body is the program's standard input, and its standard output is the reply. Exit status 0 acknowledges the message. 65 or 78 moves it to the dead letters at once. After any other status or a
    /// signal the message is retried, up to --retries attempts. If the program cannot be started, the message is released.
    /// After Ctrl-C, running programs have --shutdown-limit to finish, and messages that are not yet handled are released.
    /// A program that exceeds the limit, or whose lease is lost, is terminated with all processes of its process group: by
    /// SIGTERM, and 5 s later by SIGKILL.
    Work(Work),
    /// Show message counts by state
    Stats {
        /// Print the counts whenever they change, until Ctrl-C
        #[arg(long)]
        watch: bool,
    },
    /// Show messages without leasing them
    Peek {
        /// Maximum number of messages
        #[arg(long, default_value_t = 10, value_parser = number::<usize>)]
        max: usize,
    },
    /// Delete all messages except dead letters
    Purge,
    /// List, redrive or purge dead letters
    #[command(subcommand)]
    Dead(Dead),
    /// List the mailboxes of the store that --url names
    List,
    /// Move all messages from one mailbox to another
    ///
    /// The mailboxes can be in different stores. If the command is interrupted, no message is lost.
    ///
    /// Ids, bodies, content types, attributes, reply addresses and times of sending are kept. Groups, deduplication ids,
    /// expiry and delivery counts are not. Delayed, leased and dead messages are not moved, and neither are requests that
    /// await a reply. Messages that TO refuses stay in FROM, for example when TO has another message with the same id.
    Move {
        /// Address of the source mailbox, like sqlite://old.db/jobs
        from: String,
        /// Address of the target mailbox, like sqlite://new.db/jobs
        to: String,
        /// Maximum number of messages
        #[arg(long, value_parser = number::<u64>)]
        max: Option<u64>,
    },
    /// Demonstrate that no request is lost when a worker process is killed
    Demo(Demo),
    /// Measure send, receive and acknowledge in the store that --url names
    ///
    /// The benchmark creates a mailbox with a new name, like default-bench-1a2b3c4d5e6f for the mailbox `default`. It
    /// deletes that mailbox at the end, after an error and on Ctrl-C. It does not read or change the messages of any other
    /// mailbox.
    Bench {
        /// Number of concurrent send-receive-acknowledge cycles
        #[arg(long, default_value_t = 64, value_parser = number::<usize>)]
        concurrency: usize,
        /// How long to measure
        #[arg(long, default_value = "3s", value_name = "TIME", value_parser = duration)]
        time: Duration,
    },
    /// Print the completion script for a shell
    Completions {
        /// Name of the shell
        shell: clap_complete::Shell,
    },
    #[command(hide = true, name = "demo-worker")]
    DemoWorker,
}

#[derive(Debug, Args)]
pub(crate) struct Send {
    /// Message body [default: standard input]
    pub(crate) body: Option<String>,
    /// Read the body from this file
    #[arg(long, conflicts_with = "body")]
    pub(crate) file: Option<PathBuf>,
    /// Send one message per line, as soon as the line is read; skip empty lines
    #[arg(long, conflicts_with = "body")]
    pub(crate) lines: bool,
    /// Maximum number of lines in one request
    #[arg(long, default_value_t = 100, value_parser = number::<usize>)]
    pub(crate) batch: usize,
    /// How long the message stays invisible
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// Where to send an answer: the name of a mailbox in the same store
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) reply_to: Option<String>,
    /// Attribute of the message; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attribute: Vec<(String, String)>,
    /// Message group: its messages are delivered in order, one at a time
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Deduplication id; a repeated send with the same id is ignored within the mailbox's deduplication window
    #[arg(long, value_name = "ID", conflicts_with = "lines")]
    pub(crate) deduplication_id: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Receive {
    /// Maximum number of messages in one receive
    #[arg(long, default_value_t = 1, value_parser = number::<usize>)]
    pub(crate) max: usize,
    /// Length of the lease
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration)]
    pub(crate) visibility: Duration,
    /// How long to wait for the first message
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Duration,
    /// Acknowledge each message after it is printed
    #[arg(long)]
    pub(crate) ack: bool,
    /// Receive until Ctrl-C and acknowledge each message after it is printed
    #[arg(long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Request {
    /// Request body [default: standard input]
    pub(crate) body: Option<String>,
    /// How long to wait for the reply
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Work {
    /// Maximum number of programs that run at the same time
    #[arg(long, default_value_t = 1, value_parser = number::<usize>)]
    pub(crate) concurrency: usize,
    /// Length of the lease, which is renewed while the program runs
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub(crate) visibility: Duration,
    /// Maximum number of attempts, including the first, before a message becomes a dead letter
    #[arg(long, default_value_t = 5, value_parser = number::<u32>)]
    pub(crate) retries: u32,
    /// Delay before the first retry; it doubles with each further retry
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = duration)]
    pub(crate) backoff: Duration,
    /// How long programs may run after Ctrl-C before they are terminated and their messages are given back
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration)]
    pub(crate) shutdown_limit: Duration,
    /// Exit after this number of receives
    #[arg(long, value_parser = number::<u64>)]
    pub(crate) max_iterations: Option<u64>,
    /// Program to run, with its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    /// Show dead letters, oldest first
    List {
        /// Maximum number of dead letters
        #[arg(long, default_value_t = 100, value_parser = number::<usize>)]
        max: usize,
    },
    /// Make dead letters visible again, oldest first, with a delivery count of 0
    Redrive {
        /// Maximum number of dead letters
        #[arg(long, value_parser = number::<usize>)]
        max: Option<usize>,
    },
    /// Delete all dead letters
    Purge,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Number of requests
    #[arg(long, default_value_t = 2_000, value_parser = number::<u32>)]
    pub(crate) requests: u32,
    /// Number of worker processes; one of them is killed
    #[arg(long, default_value_t = 3, value_parser = number::<usize>)]
    pub(crate) workers: usize,
    /// Path of the SQLite file to use and keep [default: a temporary file]
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
}

/// Parses `500ms`, `2.5s`, `3m`, `1h`, or a number of seconds.
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

/// Parses a whole number.
fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "write a whole number, like 10".to_string())
}

fn attribute(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.into(), value.into()))
}
