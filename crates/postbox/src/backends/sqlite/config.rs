//! The configuration of a file.

use std::time::Duration;

use crate::error::Error;
use crate::mailbox::ranges::BUSY_TIMEOUT;

/// What a message survives after `send` has returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Synchronous {
    /// A power cut, if the disk keeps synced data. SQLite's `synchronous = FULL`.
    #[default]
    Full,
    /// The end of the process. A power cut may lose the last messages, but does not damage the file. Several times as
    /// fast. SQLite's `synchronous = NORMAL`.
    Normal,
}

/// The configuration of a file.
///
/// ```
/// use postbox::sqlite::SqliteBackend;
/// use postbox::sqlite::{SqliteConfig, Synchronous};
/// use std::time::Duration;
///
/// let folder = std::env::temp_dir().join(format!("postbox-config-{}", std::process::id()));
/// std::fs::create_dir_all(&folder).unwrap();
/// let config = SqliteConfig::default().synchronous(Synchronous::Normal).busy_timeout(Duration::from_secs(2));
/// let backend = SqliteBackend::open_with(folder.join("jobs.db"), config)?;
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqliteConfig {
    pub(super) synchronous: Synchronous,
    pub(super) busy_timeout: Duration,
}

impl Default for SqliteConfig {
    fn default() -> Self {
        SqliteConfig { synchronous: Synchronous::Full, busy_timeout: Duration::from_secs(10) }
    }
}

impl From<Synchronous> for SqliteConfig {
    fn from(synchronous: Synchronous) -> Self {
        Self::default().synchronous(synchronous)
    }
}

impl SqliteConfig {
    /// What a message survives after `send` has returned. [`Synchronous::Full`] unless it is set.
    #[must_use]
    pub const fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long an operation waits for a lock that another connection holds, at most 300 s. Then it fails with
    /// [`Error::Connection`], which is transient. 10 s unless it is set.
    #[must_use]
    pub const fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        BUSY_TIMEOUT.check(self.busy_timeout)
    }
}
