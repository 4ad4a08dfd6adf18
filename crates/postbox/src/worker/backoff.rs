//! The backoff of messages whose handler failed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a message that could not be handled stays invisible, by its delivery count. At most the mailbox's longest
/// visibility timeout.
///
/// ```
/// use postbox::Backoff;
/// use std::time::Duration;
///
/// // The default: a minute more with each delivery, at most 15 minutes.
/// assert_eq!(Backoff::default().after(2), Duration::from_secs(120));
/// assert_eq!(Backoff::default().after(100), Duration::from_secs(900));
/// let quick = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(10));
/// assert_eq!(quick.after(3), Duration::from_millis(400));
/// ```
#[derive(Clone)]
pub struct Backoff(Arc<dyn Fn(u32) -> Duration + Send + Sync>);

impl Backoff {
    /// By a rule of your own: from the delivery count, which starts at 1.
    pub fn new(rule: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        Backoff(Arc::new(rule))
    }

    /// The same delay after each delivery.
    pub fn fixed(delay: Duration) -> Self {
        Self::new(move |_| delay)
    }

    /// Longer by `step` with each delivery, at most `most`.
    pub fn linear(step: Duration, most: Duration) -> Self {
        Self::new(move |count| step.saturating_mul(count).min(most))
    }

    /// Twice as long with each delivery, at most `most`.
    pub fn exponential(first: Duration, most: Duration) -> Self {
        Self::new(move |count| {
            first.saturating_mul(1u32.checked_shl(count.saturating_sub(1)).unwrap_or(u32::MAX)).min(most)
        })
    }

    /// The delay after a number of deliveries.
    pub fn after(&self, delivery_count: u32) -> Duration {
        (self.0)(delivery_count)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::linear(Duration::from_secs(60), Duration::from_secs(900))
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((1..4).map(|count| self.after(count))).finish()
    }
}
