//! The backends: each keeps mailboxes and replies in one kind of store.

#[cfg(feature = "aws")]
pub(crate) mod dynamodb;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(feature = "aws")]
pub(crate) mod sqs;

/// Locks a mutex, also if a thread panicked while it held the lock.
#[cfg(feature = "aws")]
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
