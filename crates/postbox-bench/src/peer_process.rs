//! Peers that run in a separate process.
//!
//! Such a process prints `ready`. Then it reads a number of cycles from each line of its input, runs the cycles, and prints
//! a line with the elapsed nanoseconds and optional further numbers. It exits at the end of its input.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A running peer process.
pub(crate) struct PeerProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl PeerProcess {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", command.get_program().display()));
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let first = output.next().and_then(Result::ok);
        assert_eq!(first.as_deref(), Some("ready"), "{} did not start", command.get_program().display());
        PeerProcess { child, input, output }
    }

    pub(crate) fn begin(&mut self, cycles: usize) {
        writeln!(self.input.as_mut().expect("a pipe"), "{cycles}").expect("the peer reads its input");
    }

    /// Waits for the result. Returns the time that the process has measured.
    pub(crate) fn end(&mut self) -> Duration {
        Duration::from_nanos(*self.answer().first().expect("the peer prints nanoseconds"))
    }

    /// Waits for the result. Returns the elapsed nanoseconds and the further numbers.
    pub(crate) fn answer(&mut self) -> Vec<u64> {
        let line = self.output.next().and_then(Result::ok).expect("the peer prints a line");
        line.split(' ').map(|number| number.parse().expect("the peer prints numbers")).collect()
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Runs the loop of a peer process: measures the cycles of each input line and prints the nanoseconds.
pub(crate) fn answer(mut measure: impl FnMut(usize) -> Duration) {
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        println!("{}", measure(line.parse().expect("a number of cycles")).as_nanos());
    }
}

/// The path of a file or folder in `peers`.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// The folder for a peer's build output, next to this program in the target folder.
pub(crate) fn built(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    program.with_file_name(format!("postbox-bench-{name}"))
}

/// Builds the crate of a peer and returns the path of its program.
pub(crate) fn build(name: &str) -> PathBuf {
    let target = built(name);
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--release", "--locked", "--manifest-path"])
        .arg(source(name).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "peers/{name} cannot be built");
    target.join(format!("release/postbox-bench-{name}"))
}
