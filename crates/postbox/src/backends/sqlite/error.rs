//! Errors of SQLite as errors of Postbox.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::ErrorCode;

use crate::error::Error;

/// Whether another connection holds a lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// The error for a file that Postbox does not use.
pub(super) fn refused(path: &Path, reason: &str) -> Error {
    Error::Connection { message: format!("cannot use {}: {reason}", path.display()), transient: false, source: None }
}

/// The error of an operation on a file. `busy_timeout` is how long it waited for a lock, if that is why it failed.
pub(super) fn from_sqlite(path: &Path, busy_timeout: Duration, error: rusqlite::Error) -> Error {
    use ErrorCode::*;
    let (reason, transient) = match error.sqlite_error_code() {
        _ if is_busy(&error) => {
            let waited = busy_timeout.as_secs_f64();
            let reason = format!(
                "another connection has held its lock for {waited} s; end its transaction, or raise busy_timeout"
            );
            (reason, true)
        }
        Some(DiskFull) => ("the disk is full; make room".into(), true),
        Some(ReadOnly) => ("the file or its folder is read-only".into(), false),
        Some(NotADatabase) => ("it is not a database; choose another file".into(), false),
        Some(DatabaseCorrupt) => ("the file is damaged; restore it from a copy".into(), false),
        Some(PermissionDenied | AuthorizationForStatementDenied) => ("permission denied".into(), false),
        Some(CannotOpen) => ("it cannot be opened: is there no such folder, or is it read-only?".into(), false),
        Some(SystemIoFailure) => ("the disk failed".into(), true),
        _ => ("SQLite failed".into(), false),
    };
    let message = format!("cannot use {}: {reason} ({error})", path.display());
    Error::Connection { message, transient, source: Some(Arc::new(error)) }
}
