//! Keeps SIGHUP ignored if the process was started so.
#![allow(unsafe_code, reason = "there is no other way to read and set the disposition of a signal")]

/// Calls `install`, which installs signal handlers. If SIGHUP was ignored before, it is ignored afterwards too, so that
/// `nohup postbox …` continues when the terminal is closed.
#[cfg(unix)]
pub(crate) fn keep_sighup_ignored<T>(install: impl FnOnce() -> T) -> T {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: this ignores the signal, so no handler code can run.
    let before = unsafe { sigaction(Signal::SIGHUP, &ignore) };
    let installed = install();
    if before.is_ok_and(|before| matches!(before.handler(), SigHandler::SigIgn)) {
        // SAFETY: as above.
        let _ = unsafe { sigaction(Signal::SIGHUP, &ignore) };
    }
    installed
}

#[cfg(not(unix))]
pub(crate) fn keep_sighup_ignored<T>(install: impl FnOnce() -> T) -> T {
    install()
}
