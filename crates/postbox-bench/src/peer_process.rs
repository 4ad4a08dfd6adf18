//! Systems in processes of their own, measured in turn with those in this one.
//!
//! Such a process writes `ready`, then reads numbers of cycles, one a line, and answers each with the nanoseconds that
//! they took, and further numbers if it has any. It ends with its input.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A process that measures.
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
        writeln!(self.input.as_mut().expect("a pipe"), "{cycles}").expect("it listens");
    }

    /// How long it took, as the process itself sees it.
    pub(crate) fn end(&mut self) -> Duration {
        Duration::from_nanos(*self.answer().first().expect("it answers with nanoseconds"))
    }

    /// The same in nanoseconds, and what else it tells.
    pub(crate) fn answer(&mut self) -> Vec<u64> {
        let line = self.output.next().and_then(Result::ok).expect("it answers");
        line.split(' ').map(|number| number.parse().expect("it answers with numbers")).collect()
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The other side: answers what the standard input asks for.
pub(crate) fn answer(mut measure: impl FnMut(usize) -> Duration) {
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        println!("{}", measure(line.parse().expect("a number of cycles")).as_nanos());
    }
}

/// A file or folder of `peers`.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// Beside this program, in the target folder.
pub(crate) fn built(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    program.with_file_name(format!("postbox-bench-{name}"))
}

/// Builds the crate of a peer, and says where its program is.
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
