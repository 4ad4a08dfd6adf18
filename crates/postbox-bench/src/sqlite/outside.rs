//! Systems in processes of their own, measured in turn with those in this one.
//!
//! Such a process writes `ready`, then reads numbers of cycles, one a line, and answers each with the nanoseconds that
//! they took. It ends with its input.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::Folder;
use crate::report::{Contender, Settings};

/// The peers that have to be built or installed first; `--peers` asks for them.
pub(crate) const PEERS: [&str; 2] = ["apalis", "python"];

/// A process that measures.
pub(super) struct Outside {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Outside {
    pub(super) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", command.get_program().display()));
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let first = output.next().and_then(Result::ok);
        assert_eq!(first.as_deref(), Some("ready"), "{} did not start", command.get_program().display());
        Outside { child, input, output }
    }

    pub(super) fn begin(&mut self, cycles: usize) {
        writeln!(self.input.as_mut().expect("a pipe"), "{cycles}").expect("it listens");
    }

    /// How long it took, as the process itself sees it.
    pub(super) fn end(&mut self) -> Duration {
        let nanoseconds = self.output.next().and_then(Result::ok).and_then(|line| line.parse().ok());
        Duration::from_nanos(nanoseconds.expect("it answers with nanoseconds"))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The other side: answers what the standard input asks for.
pub(super) fn answer(mut measure: impl FnMut(usize) -> Duration) {
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        println!("{}", measure(line.parse().expect("a number of cycles")).as_nanos());
    }
}

/// Those that were asked for, one cycle at a time.
pub(super) fn peers(settings: &Settings, folder: &Folder, level: &str) -> Vec<Contender<'static>> {
    let mut contenders = Vec::new();
    if settings.peers.iter().any(|peer| peer == "apalis") {
        contenders.push(contender("apalis-sqlite", Command::new(apalis()).arg(folder.file()).arg(level)));
    }
    if settings.peers.iter().any(|peer| peer == "python") {
        for system in ["litequeue", "persist-queue"] {
            let mut python = Command::new("python3");
            python.arg(source("python.py")).arg(built("python")).arg(system).arg(folder.file()).arg(level);
            contenders.push(contender(system, &mut python));
        }
    }
    contenders
}

fn contender(system: &'static str, command: &mut Command) -> Contender<'static> {
    let mut peer = Outside::start(command);
    Contender::new(system, move |cycles| {
        peer.begin(cycles);
        peer.end()
    })
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// Beside this program, in the target folder.
fn built(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    program.with_file_name(format!("postbox-bench-{name}"))
}

/// It links another SQLite than Postbox does, and a program can have only one: it is a program of its own.
fn apalis() -> PathBuf {
    let target = built("apalis");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--release", "--locked", "--manifest-path"])
        .arg(source("apalis/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "peers/apalis cannot be built");
    target.join("release/postbox-bench-apalis")
}
