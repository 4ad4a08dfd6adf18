//! The disposition of SIGHUP, which the process inherits.
#![allow(unsafe_code, reason = "there is no other way to read and set the disposition of a signal")]

/// Installs handlers, and leaves SIGHUP ignored if it was: `nohup postbox …` goes on when the terminal is closed.
#[cfg(unix)]
pub(crate) fn with_hangup_as_it_is<T>(install: impl FnOnce() -> T) -> T {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed; an ignored signal runs no code.
    let before = unsafe { sigaction(Signal::SIGHUP, &ignore) };
    let installed = install();
    if before.is_ok_and(|before| matches!(before.handler(), SigHandler::SigIgn)) {
        // SAFETY: as above.
        let _ = unsafe { sigaction(Signal::SIGHUP, &ignore) };
    }
    installed
}

#[cfg(not(unix))]
pub(crate) fn with_hangup_as_it_is<T>(install: impl FnOnce() -> T) -> T {
    install()
}
