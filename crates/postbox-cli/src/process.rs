//! A program in a process group of its own: Ctrl-C in a terminal does not reach it, and it can be ended together with
//! all processes that it started.

use std::collections::BTreeSet;
use std::io;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// How long processes have between SIGTERM and SIGKILL.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The groups whose programs run, by their ids. They end with this process.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn running() -> MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends this process at once, and all groups with it.
pub(crate) fn exit_at_once(status: i32) -> ! {
    // The lock is kept: no program starts from here on.
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
    // A group that is gone needs no signal.
    let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group.cast_signed()), signal);
}

#[cfg(unix)]
fn exists(group: u32) -> bool {
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group.cast_signed()), None).is_ok()
}

/// There are no process groups: the program alone is ended, by its handle.
#[cfg(not(unix))]
fn signal(_: u32, _: Signal) {}

#[cfg(not(unix))]
fn exists(_: u32) -> bool {
    false
}

/// A program that runs. Dropped before it has ended, it is killed with its group.
pub(crate) struct Group {
    pub(crate) child: Child,
    id: u32,
}

impl Group {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        #[cfg(unix)]
        command.process_group(0);
        let mut running = running();
        let child = command.kill_on_drop(true).spawn()?;
        let id = child.id().ok_or_else(|| io::Error::other("it has no process id"))?;
        running.insert(id);
        Ok(Group { child, id })
    }

    /// Waits until the program has ended. Processes that it started may run on.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        running().remove(&self.id);
        Ok(status)
    }

    /// Ends the program and all processes of its group: by SIGTERM, and by SIGKILL if that is not enough.
    pub(crate) async fn end(mut self) {
        signal(self.id, Signal::Terminate);
        #[cfg(not(unix))]
        let _ = self.child.start_kill();
        let ended = async {
            let _ = self.child.wait().await;
            while exists(self.id) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(GRACE, ended).await.is_ok() {
            // The id may be that of another group from now on.
            running().remove(&self.id);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if running().remove(&self.id) {
            signal(self.id, Signal::Kill);
        }
    }
}
