//! What the backends share to wait and to run: timers, the I/O thread, waiters and oneshot results.

pub(crate) mod background;
#[cfg(feature = "redis")]
pub(crate) mod busy_poll;
pub(crate) mod cancellation;
pub(crate) mod clock;
#[cfg(any(feature = "redis", feature = "aws"))]
pub(crate) mod io_thread;
#[cfg(any(feature = "sqlite", feature = "redis", feature = "aws"))]
pub(crate) mod oneshot;
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) mod waiters;
