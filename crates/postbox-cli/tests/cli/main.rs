//! Runs the `postbox` binary, each test in a temporary folder.

mod commands;
mod interrupts;
mod output;
#[cfg(unix)]
mod receive;
#[cfg(unix)]
mod send;
mod snapshots;
#[cfg(unix)]
mod transfer;
#[cfg(unix)]
mod work;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Upper limit of every wait.
const LONG: Duration = Duration::from_secs(60);

fn postbox(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
    command
        .current_dir(folder)
        .env_remove("POSTBOX_URL")
        .env("COLUMNS", "100")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    postbox(folder).args(arguments).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The standard output of a command that must succeed.
fn ok(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", err(&output));
    out(&output)
}

fn piped(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = postbox(folder)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Polls until a condition holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal to a process, or to a group with a minus before its id.
fn signal(signal: &str, id: &str) {
    assert!(Command::new("kill").args([signal, "--", id]).status().unwrap().success());
}

/// Whether a process exists and is not a zombie.
fn is_running(id: u32) -> bool {
    let status = Command::new("ps").args(["-o", "stat=", "-p", &id.to_string()]).output().unwrap();
    !matches!(out(&status).trim_start().chars().next(), None | Some('Z'))
}

/// Waits until a process has installed its handler for SIGINT. Without the handler, the signal would kill the process.
#[cfg(target_os = "linux")]
fn until_it_handles_interrupts(id: u32) {
    until("SIGINT is handled", || {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(caught, 16).unwrap() & 1 << 1 != 0
    });
}
