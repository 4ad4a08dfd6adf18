//! Runs a program in a new process group. Ctrl-C in a terminal does not reach it, and it can be terminated together with
//! all processes that it started.

use std::collections::BTreeSet;
use std::io;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Time between SIGTERM and SIGKILL.
pub(crate) const GRACE_PERIOD: Duration = Duration::from_secs(5);

/// Ids of the process groups whose programs are running. `exit_at_once` kills them.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn running() -> MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all running process groups and exits.
pub(crate) fn exit_at_once(status: i32) -> ! {
    // The lock is held until the exit, so that no other program can be started.
    let running = running();
    running.iter().for_each(|id| signal(*id, Signal::Kill));
    std::process::exit(status)
}

#[derive(Clone, Copy)]
enum Signal {
    Terminate,
    Kill,
}

#[cfg(unix)]
fn signal(group: u32, signal: Signal) {
    let signal = match signal {
        Signal::Terminate => nix::sys::signal::Signal::SIGTERM,
        Signal::Kill => nix::sys::signal::Signal::SIGKILL,
    };
    // An error means that the group has ended.
    let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group.cast_signed()), signal);
}

#[cfg(unix)]
fn exists(group: u32) -> bool {
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group.cast_signed()), None).is_ok()
}

/// Without process groups, only the program itself can be terminated, by its `Child`.
#[cfg(not(unix))]
fn signal(_: u32, _: Signal) {}

#[cfg(not(unix))]
fn exists(_: u32) -> bool {
    false
}

/// A running program. If it is dropped before the program has exited, it kills the process group.
pub(crate) struct ProcessGroup {
    pub(crate) child: Child,
    id: u32,
}

impl ProcessGroup {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        #[cfg(unix)]
        command.process_group(0);
        let mut running = running();
        let child = command.kill_on_drop(true).spawn()?;
        let id = child.id().ok_or_else(|| io::Error::other("the program has no process id"))?;
        running.insert(id);
        Ok(ProcessGroup { child, id })
    }

    /// Waits until the program has exited. Processes that it started may still run.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        running().remove(&self.id);
        Ok(status)
    }

    /// Sends SIGTERM to the group, and SIGKILL if it has not ended after the grace period.
    pub(crate) async fn terminate(mut self) {
        signal(self.id, Signal::Terminate);
        #[cfg(not(unix))]
        let _ = self.child.start_kill();
        let ended = async {
            let _ = self.child.wait().await;
            while exists(self.id) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(GRACE_PERIOD, ended).await.is_ok() {
            // The operating system may reuse the id.
            running().remove(&self.id);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if running().remove(&self.id) {
            signal(self.id, Signal::Kill);
        }
    }
}
