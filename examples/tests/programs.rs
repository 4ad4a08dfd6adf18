//! Runs every example, as a user would.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use postbox::Mailbox;

/// The program of an example, which cargo builds together with this test.
fn program(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(2).unwrap();
    let path = target.join("examples").join(name);
    assert!(path.exists(), "{} is missing: run the tests of the whole crate", path.display());
    Command::new(path)
}

/// Runs an example to its end, and returns what it printed.
fn run(name: &str, arguments: &[&Path]) -> String {
    let output = program(name).args(arguments).stderr(Stdio::inherit()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{name}: {}\n{printed}", output.status);
    printed
}

/// Those without arguments. They check their own results.
#[test]
fn the_simple_examples_succeed() {
    for name in [
        "actor",
        "block_policy",
        "bounded_mailbox",
        "client_patterns",
        "priority_mailbox",
        "request_reply",
        "tenants",
        "unbounded_mailbox",
        "worker",
    ] {
        assert!(!run(name, &[]).is_empty(), "{name} prints something");
    }
}

#[test]
fn every_example_has_a_test() {
    let this = include_str!("programs.rs");
    let files = fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap().map(|file| file.unwrap().path());
    let examples: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|ext| ext == "rs")).collect();
    assert!(examples.len() > 10);
    for example in examples {
        let name = example.file_stem().unwrap().to_str().unwrap();
        assert!(this.contains(&format!("{name:?}")), "no test runs {name}");
    }
}

#[test]
fn the_outbox_commits_an_order_with_its_job_or_neither() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run("outbox", &[&folder.path().join("shop.db")]);
    assert_eq!(printed, "1 orders, 1 jobs\nship order 1: lamp\n");
}

#[test]
fn the_folder_backend_gives_messages_back() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run("folder", &[&folder.path().join("messages")]);
    assert!(printed.starts_with("cat.png (delivery 1)\ndog.png (delivery 1)\n1 ready, 0 in flight"), "{printed}");
}

/// A program that runs until it gets a signal.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut child = program(name).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Running { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    /// Sends SIGTERM. Returns what the program prints until it has ended.
    fn terminate(mut self) -> String {
        let kill = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

/// A test that fails leaves no program behind.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_job_of_a_request_is_done_by_the_worker_of_the_same_program() {
    let mut service = Running::start("axum_jobs", &["127.0.0.1:0", "memory://images"]);
    let address = service.line().replace("listening on http://", "");
    let request = |head: &str, body: &str| {
        let mut connection = TcpStream::connect(&address).unwrap();
        let length = body.len();
        write!(
            connection,
            "{head} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        response
    };

    let accepted = request("POST /images", "cat.png");
    assert!(accepted.starts_with("HTTP/1.1 202 "), "{accepted}");
    assert_eq!(service.line(), "resized cat.png");
    assert!(request("POST /images", "notes.txt").starts_with("HTTP/1.1 202 "));
    while !request("GET /stats", "").ends_with("ready: 0\nin flight: 0\ndead: 1\n") {
        std::thread::yield_now();
    }
    assert_eq!(service.terminate(), "1 succeeded, 1 dead\n");
}

#[test]
fn a_signal_ends_the_worker_after_what_it_has_begun() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("sqlite://{}/jobs", folder.path().join("jobs.db").display());
    let jobs: Mailbox<String> = postbox::open(&uri).blocking().unwrap();
    // More than the worker can do before the signal arrives.
    for number in 0..100 {
        jobs.send(&number.to_string()).blocking().unwrap();
    }
    let mut worker = Running::start("graceful_shutdown", &[&uri]);
    assert!(worker.line().starts_with("begun "));
    let printed = worker.terminate();
    assert!(printed.contains("shutting down"), "{printed}");

    // Each job that was begun is done, and the others are ready at once, not leased.
    let done = printed.matches("done ").count() as u64;
    assert!((1..100).contains(&done), "{printed}");
    assert!(printed.ends_with(&format!("{done} succeeded\n")), "{printed}");
    let counts = jobs.counts().blocking().unwrap();
    assert_eq!((counts.ready, counts.in_flight), (100 - done, 0));
    assert!(jobs.receive().max_messages(100).blocking().unwrap().iter().all(|message| message.delivery_count == 1));
}
