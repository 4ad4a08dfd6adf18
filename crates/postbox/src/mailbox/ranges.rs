//! The ranges of the durations and numbers that a program or a URI sets. They are the same for all backends.

use std::time::Duration;

use crate::backend::{Limits, MailboxSettings};
use crate::error::Error;

/// The range of a duration.
pub(crate) struct Span {
    parameter: &'static str,
    least: Duration,
    longest: Duration,
}

/// How long a deduplication id is remembered.
pub(crate) const DEDUPLICATION_WINDOW: Span = Span::new("deduplication_window", Duration::ZERO, Limits::LONGEST);
/// After how long without use a mailbox is removed.
pub(crate) const IDLE_EXPIRY: Span = Span::new("idle_expiry", Duration::from_millis(1), Limits::LONGEST);
/// How long a reply store keeps a reply.
pub(crate) const REPLY_TIMEOUT: Span = Span::new("reply_timeout", Duration::ZERO, Limits::LONGEST);
/// How long an operation waits for the lock of a file.
#[cfg(feature = "sqlite")]
pub(crate) const BUSY_TIMEOUT: Span = Span::new("busy_timeout", Duration::ZERO, LONGEST_OUTAGE);
/// How long an operation on a server is retried.
#[cfg(feature = "redis")]
pub(crate) const TIMEOUT: Span = Span::new("timeout", Duration::ZERO, LONGEST_OUTAGE);
/// How long a send waits for replicas. Redis takes zero as no limit.
#[cfg(feature = "redis")]
pub(crate) const REPLICA_TIMEOUT: Span = Span::new("replica_timeout", Duration::from_millis(1), LONGEST_OUTAGE);

/// The largest timeout for a lock or a server.
#[cfg(any(feature = "sqlite", feature = "redis"))]
const LONGEST_OUTAGE: Duration = Duration::from_secs(300);

impl Span {
    const fn new(parameter: &'static str, least: Duration, longest: Duration) -> Self {
        Span { parameter, least, longest }
    }

    /// # Errors
    /// [`Error::InvalidParameter`] for a duration that is out of range.
    pub(crate) fn check(&self, value: Duration) -> Result<(), Error> {
        if (self.least..=self.longest).contains(&value) {
            return Ok(());
        }
        let limit = format!("{} to {}", in_seconds(self.least), in_seconds(self.longest));
        Err(Error::invalid(self.parameter, in_seconds(value), limit))
    }

    /// Reads a number of seconds in a URI.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for a text that is no number, and for a duration that is out of range.
    pub(crate) fn parse(&self, text: &str) -> Result<Duration, Error> {
        let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.filter(|value| self.check(*value).is_ok()).ok_or_else(|| {
            let [least, longest] = [self.least, self.longest].map(|limit| limit.as_secs_f64());
            Error::invalid(
                self.parameter,
                format!("{text:?}"),
                format!("a number of seconds from {least} to {longest}"),
            )
        })
    }
}

/// The range of a number that has no limit unless it is set.
pub(crate) struct Count {
    parameter: &'static str,
    most: u64,
}

/// How many messages a mailbox holds. More than fit into any store.
pub(crate) const MAX_SIZE: Count = Count { parameter: "max_size", most: 1 << 40 };
/// The number of deliveries after which a message becomes a dead letter. More than any store counts.
pub(crate) const MAX_DELIVERIES: Count = Count { parameter: "max_deliveries", most: 1_000_000 };

impl Count {
    fn limit(&self) -> String {
        format!("1 to {}; leave it out for no limit", self.most)
    }

    fn check(&self, value: u64) -> Result<(), Error> {
        if (1..=self.most).contains(&value) { Ok(()) } else { Err(Error::invalid(self.parameter, value, self.limit())) }
    }

    /// Reads a number in a URI.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for a text that is no whole number, and for a number that is out of range.
    pub(crate) fn parse<T: TryFrom<u64>>(&self, text: &str) -> Result<T, Error> {
        let number = text.parse::<u64>().ok().filter(|value| self.check(*value).is_ok());
        number.and_then(|value| T::try_from(value).ok()).ok_or_else(|| {
            Error::invalid(self.parameter, format!("{text:?}"), format!("a whole number from {}", self.limit()))
        })
    }
}

/// Checks all settings of a mailbox. Some backends allow less.
pub(crate) fn check_settings(settings: &MailboxSettings) -> Result<(), Error> {
    settings.max_size.map_or(Ok(()), |most| MAX_SIZE.check(most as u64))?;
    settings.max_deliveries.map_or(Ok(()), |most| MAX_DELIVERIES.check(most.into()))?;
    settings.deduplication_window.map_or(Ok(()), |window| DEDUPLICATION_WINDOW.check(window))?;
    settings.idle_expiry.map_or(Ok(()), |after| IDLE_EXPIRY.check(after))
}

/// Checks a duration against a limit of the mailbox.
#[inline(always)]
pub(crate) fn check_duration(parameter: &'static str, value: Duration, longest: Duration) -> Result<(), Error> {
    // Nearly all calls are decided by their whole seconds.
    if value.as_secs() < longest.as_secs() {
        return Ok(());
    }
    Span::new(parameter, Duration::ZERO, longest).check(value)
}

/// A duration, for an error message.
fn in_seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_uris_are_in_their_range() {
        let span = Span::new("lease", Duration::from_millis(1), Duration::from_secs(300));
        for (text, millis) in [("0.001", 1), ("1", 1_000), ("3e2", 300_000), ("+.5", 500)] {
            assert_eq!(span.parse(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for text in ["", "x", "-1", "-0.1", "0", "1e-9", "300.001", "1e19", "1e20", "1e999", "inf", "NaN", "1 "] {
            let error = span.parse(text).unwrap_err().to_string();
            for part in ["lease", &format!("{text:?}"), "seconds from 0.001 to 300"] {
                assert!(error.contains(part), "{text:?}: {error}");
            }
        }
    }

    #[test]
    fn numbers_in_uris_are_in_their_range() {
        assert_eq!(MAX_DELIVERIES.parse::<u32>("1000000").unwrap(), 1_000_000);
        assert_eq!(MAX_SIZE.parse::<usize>("1").unwrap(), 1);
        for text in ["", "x", "0", "-1", "1.5", "1000001", "18446744073709551616"] {
            let error = MAX_DELIVERIES.parse::<u32>(text).unwrap_err().to_string();
            for part in ["max_deliveries", &format!("{text:?}"), "1 to 1000000"] {
                assert!(error.contains(part), "{text:?}: {error}");
            }
        }
    }
}
