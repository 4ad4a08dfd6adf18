//! The time of a file, in Unix milliseconds. It never stands still.

use std::fmt;
use std::sync::Arc;

use rusqlite::{Connection, Result, params};

use crate::runtime::clock::{Clock, Moment};

/// The largest difference between two clocks that is ignored, in milliseconds.
const TOLERANCE: i64 = 5_000;

/// The clock of one connection. It advances with the process's monotonic clock, and is set to the wall clock when they
/// differ by more than five seconds.
pub(super) struct FileClock {
    clock: Arc<dyn Clock>,
    /// The time of this clock minus that of the monotonic clock.
    offset: i64,
}

impl fmt::Debug for FileClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileClock").field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl FileClock {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        FileClock { clock, offset: 0 }
    }

    /// The present moment.
    pub(super) fn now(&mut self) -> Now {
        let monotonic = milliseconds(self.clock.now().into());
        let wall = milliseconds(self.clock.wall());
        if (wall - monotonic - self.offset).abs() > TOLERANCE {
            self.offset = wall - monotonic;
        }
        Now { millis: monotonic + self.offset, offset: self.offset }
    }
}

/// A moment of the file, and how far the file's time is ahead of the process's clock.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) millis: i64,
    offset: i64,
}

impl Now {
    /// Converts a moment of the file to one of the process's clock.
    pub(super) fn alarm(self, moment: i64) -> Moment {
        let millis = u64::try_from(moment.saturating_sub(self.offset)).unwrap_or(0);
        Moment::from_nanos(millis.saturating_mul(1_000_000))
    }
}

/// Unix milliseconds.
pub(super) fn milliseconds(time: std::time::SystemTime) -> i64 {
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX / 4)
}

/// Whether the clock of the last writer was ahead of this one. Then deadlines may be too far in the future.
pub(super) const fn is_behind(now: i64, high_water: i64) -> bool {
    high_water.saturating_sub(now) > TOLERANCE
}

/// Statements that restart the deadlines which were set after ?2: at ?1, each with its own length.
const RESTART: [&str; 5] = [
    "UPDATE message SET due = ?1 + (due - since), since = ?1 WHERE due IS NOT NULL AND since > ?2",
    "UPDATE message SET expires_at = ?1 + (expires_at - sent_at), sent_at = ?1 \
     WHERE expires_at IS NOT NULL AND sent_at > ?2",
    "UPDATE deduplication SET until = ?1 + (until - since), since = ?1 WHERE since > ?2",
    "UPDATE reply SET expires_at = ?1 + (expires_at - created_at), created_at = ?1 WHERE created_at > ?2",
    "UPDATE mailbox SET idle_at = idle_expiry + max(?1, coalesce((SELECT max(due) FROM message \
     WHERE message.mailbox = mailbox.id AND state >= 2), 0)) WHERE idle_at IS NOT NULL AND idle_at > ?2 + idle_expiry",
];

/// Restarts the deadlines that were set while a clock was ahead. It reads the whole file, once each time a clock is set back.
pub(super) fn restart_deadlines(connection: &Connection, now: i64) -> Result<()> {
    for statement in RESTART {
        connection.prepare(statement)?.execute(params![now, now + TOLERANCE])?;
    }
    connection.execute("UPDATE meta SET value = ?1 WHERE key = 'high_water'", [now])?;
    Ok(())
}
