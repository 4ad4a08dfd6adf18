//! The conformance suite: tests of the [contract of a backend](crate::backend). Feature
//! `conformance`.
//!
//! The author of a backend implements [`Harness`], and expands the list of cases to one test each:
//!
//! ```
//! use postbox::conformance::Harness;
//! use postbox::testing::FakeBackend;
//! use postbox::Connection;
//! use std::time::Duration;
//!
//! struct Fake(FakeBackend);
//!
//! impl Harness for Fake {
//!     fn connect(&self) -> Connection {
//!         Connection::new(self.0.clone())
//!     }
//!
//!     fn advance(&self, by: Duration) {
//!         self.0.clock().advance(by);
//!     }
//!
//!     fn tick(&self) -> Duration {
//!         Duration::from_secs(1)
//!     }
//!
//!     fn is_exact(&self) -> bool {
//!         true
//!     }
//! }
//!
//! // In a test module: one test for each case.
//! mod fake {
//!     use super::*;
//!     postbox::conformance_tests!(Fake(FakeBackend::new()));
//! }
//!
//! // One case by its name, and random operations against the ledger.
//! # fn main() {
//! postbox::conformance::run(&Fake(FakeBackend::new()), "settle::a_lease_ends_at_its_deadline");
//! postbox::conformance::property(&Fake(FakeBackend::new()), 16);
//! # }
//! ```
//!
//! A case reads the backend's [`Limits`], never its name. Where the limits say that a feature is
//! missing, the case checks for the right error instead.

mod dead_letters;
mod drops;
mod errors;
mod extras;
mod extremes;
mod lifecycle;
mod property;
mod receive;
mod replies;
mod reply_store;
mod send;
mod settle;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

pub use self::property::property;
use crate::backend::Limits;
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::Json;
use crate::mailbox::connection::Connection;
use crate::mailbox::id::new_uuid;

/// Gives the suite a backend to test, and control over its time.
pub trait Harness: Send + Sync {
    /// A connection to the backend. The suite creates mailboxes with new names in it. All
    /// connections of one harness reach the same mailboxes.
    fn connect(&self) -> Connection;

    /// Lets this much time pass for the backend: moves its clock, or sleeps.
    fn advance(&self, by: Duration);

    /// The unit of time of the cases: leases and delays last a few ticks. A tick must be longer
    /// than a dozen operations take.
    fn tick(&self) -> Duration;

    /// The end of the names of all mailboxes, for a backend that gives it a meaning, as SQS does to
    /// `.fifo`.
    fn suffix(&self) -> &'static str {
        ""
    }

    /// The longest name of a mailbox. A backend that adds a prefix to names allows fewer characters
    /// than others.
    fn longest_name(&self) -> usize {
        80
    }

    /// Why a case fails on the server under test, if that server only emulates another one. [`run`]
    /// panics if the case passes, because the entry is then out of date.
    fn known_failure(&self, _case: &str) -> Option<&'static str> {
        None
    }

    /// Whether time stands still between calls of [`advance`](Self::advance), so that the cases can
    /// reach a deadline exactly.
    fn is_exact(&self) -> bool {
        false
    }
}

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// The verb and the behaviour that the case checks, such as
    /// `settle::a_lease_ends_at_its_deadline`.
    pub name: &'static str,
    case: fn(&Target<'_>),
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// The list of all cases. Calls the macro `$callback` with the given arguments and then the list.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_list {
    ($callback:ident ! ($($argument:tt)*)) => {
        $crate::$callback! {
            ($($argument)*)
            send {
                a_message_arrives_as_it_was_sent,
                ids_are_unique_and_deliveries_have_them,
                first_deliveries_are_in_order,
                a_delayed_message_is_invisible_until_its_time,
                messages_are_ordered_by_the_moment_they_become_visible,
                large_empty_and_binary_bodies_arrive_unchanged,
                all_codecs_work,
                a_full_mailbox_refuses_until_there_is_room,
                a_batch_is_sent_in_order_with_a_result_for_each_message,
                a_body_that_cannot_be_encoded_is_not_sent,
                a_repeated_id_is_the_same_send,
                an_id_in_use_with_another_body_is_refused,
                a_moved_message_keeps_its_times_and_its_content_type,
            }
            receive {
                an_empty_mailbox_returns_no_messages,
                a_receive_does_not_wait_until_its_batch_is_full,
                a_received_message_is_invisible_to_others,
                a_wait_ends_without_messages_after_its_wait_time,
                a_wait_wakes_for_a_message,
                a_wait_wakes_for_a_delayed_message,
                a_wait_wakes_for_an_ended_lease,
                a_wait_wakes_for_a_returned_message,
                a_dropped_wait_leaves_no_message_leased,
                a_woken_wait_that_is_dropped_passes_its_wake_up_on,
                waiting_consumers_get_one_message_each,
                a_visibility_timeout_of_zero_delivers_once_per_receive,
                a_body_that_cannot_be_decoded_does_not_fail_the_batch,
                a_body_in_another_codec_is_refused,
                consumers_on_threads_receive_each_message_once,
                a_dropped_stream_releases_fetched_messages,
            }
            settle {
                an_acknowledged_message_is_gone,
                a_returned_message_is_ready_at_once_at_the_tail,
                a_message_returned_with_a_delay_is_visible_after_it,
                a_lease_ends_at_its_deadline,
                a_message_of_a_crashed_consumer_is_delivered_again,
                an_old_receipt_does_not_settle_the_next_delivery,
                a_receipt_settles_once,
                an_extension_counts_from_now,
                an_extension_never_shortens_a_lease,
                a_purge_ends_leases,
                a_batch_is_acknowledged_with_a_result_for_each_message,
                a_lease_without_its_body_has_the_same_operations,
                an_operation_can_be_repeated_after_an_invalid_parameter,
                a_released_message_keeps_its_position_and_its_count,
                a_receipt_is_invalid_after_a_release,
                a_release_after_other_deliveries_keeps_the_order,
                a_group_stays_in_order_after_a_release,
            }
            extremes {
                sends_accept_any_delay_and_expiry_within_their_limits,
                leases_accept_any_length_within_their_limit,
                replies_accept_any_timeout_within_their_limit,
                maximum_numbers_of_any_size_are_accepted_or_refused,
                texts_of_any_kind_are_kept_or_refused,
                headers_are_bounded_in_number_and_size,
                a_backend_without_limits_accepts_any_duration,
            }
            drops {
                a_dropped_send_with_an_id_can_be_repeated,
                dropped_sends_are_stored_once_or_not_at_all,
                a_dropped_receive_releases_its_messages,
                a_dropped_settlement_has_one_effect_when_it_is_repeated,
                a_dropped_cancel_purge_or_delete_can_be_repeated,
                a_dropped_request_or_answer_can_be_repeated,
            }
            lifecycle {
                counts_are_by_state,
                a_purge_removes_all_messages_and_returns_their_number,
                a_peek_delivers_no_message,
                handles_of_one_name_share_a_mailbox,
                a_mailbox_is_created_and_deleted,
                mailboxes_are_listed,
                closing_affects_only_a_handle_and_its_clones,
                a_leased_message_can_be_settled_after_closing,
                handles_are_compared_by_their_mailbox,
                settings_apply_after_a_delete,
                the_last_settings_of_a_mailbox_apply,
            }
            dead_letters {
                a_message_is_dead_lettered_after_its_last_delivery,
                a_delivery_to_a_crashed_consumer_counts,
                a_released_delivery_does_not_count,
                a_message_is_dead_lettered_by_request,
                a_request_can_be_dead_lettered_and_answered_after_a_redrive,
                dead_letters_are_redriven_and_purged,
                a_body_that_cannot_be_decoded_is_dead_lettered,
            }
            extras {
                a_deduplication_id_is_one_message_within_the_window,
                a_group_is_delivered_in_order_one_at_a_time,
                a_group_waits_for_its_returned_message,
                a_group_skips_expired_messages,
                a_group_skips_messages_whose_deliveries_are_spent,
                a_mailbox_with_a_delayed_or_leased_message_is_not_idle,
                a_message_expires_unless_it_is_leased,
                a_wait_wakes_when_an_expiry_frees_a_group,
                a_delayed_message_can_be_cancelled_until_it_is_visible,
            }
            errors {
                durations_beyond_the_limit_are_refused,
                batches_beyond_the_limit_are_refused,
                messages_beyond_the_limit_are_refused,
                names_and_attributes_are_checked,
                settings_out_of_range_are_refused,
                portable_limits_are_enforced_on_every_backend,
            }
            replies {
                a_request_is_answered,
                a_wait_wakes_when_the_reply_arrives,
                a_wait_times_out_and_can_be_repeated,
                a_reply_is_polled_and_kept_by_the_handle,
                a_reply_expires,
                a_wait_does_not_sleep_past_the_expiry,
                a_reply_is_cancelled,
                a_wait_wakes_when_the_reply_is_cancelled,
                a_reply_is_found_again_by_its_id,
                a_request_is_not_acknowledged_without_an_answer,
                a_message_that_expects_no_reply_refuses_one,
                a_reply_after_the_end_of_the_lease_is_refused,
                an_answer_after_a_cancel_acknowledges_the_message,
                a_second_answer_acknowledges_the_message,
                a_failed_request_leaves_no_reply_entry,
                a_repeated_request_awaits_the_same_reply,
                a_reply_channel_accepts_one_answer,
            }
            reply_store {
                an_entry_is_created_once,
                an_entry_is_resolved_once,
                a_cancelled_entry_refuses_an_answer,
                a_resolved_entry_is_consumed_once,
                an_expired_entry_refuses_an_answer,
                resolved_and_cancelled_entries_expire_too,
                an_entry_is_deleted,
                expired_entries_are_scanned_and_cleaned_up,
                an_unknown_entry_is_settled,
                one_of_many_consumers_gets_the_answer,
            }
        }
    };
}

/// Expands the conformance suite to one `#[test]` for each case:
/// `postbox::conformance_tests!(harness)`. Each test evaluates the expression `harness`.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::__conformance_list!(__conformance_tests!($harness));
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (($harness:expr) $($verb:ident { $($case:ident,)* })*) => {
        $(
            mod $verb {
                #[allow(unused_imports)]
                use super::*;

                $(
                    #[test]
                    fn $case() {
                        $crate::conformance::run(&$harness, concat!(stringify!($verb), "::", stringify!($case)));
                    }
                )*
            }
        )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    (() $($verb:ident { $($case:ident,)* })*) => {
        /// All cases.
        pub const CASES: &[Case] =
            &[$($(Case { name: concat!(stringify!($verb), "::", stringify!($case)), case: $verb::$case },)*)*];
    };
}

__conformance_list!(__conformance_cases!());

/// Runs the case with this name.
///
/// # Panics
/// If the backend does not behave as the case requires, if the case passes although it is a
/// [known failure](Harness::known_failure), or if there is no such case.
pub fn run(harness: &dyn Harness, name: &str) {
    let case = CASES.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("there is no case {name:?}"));
    let target = Target { harness, connection: harness.connect() };
    match harness.known_failure(name) {
        None => (case.case)(&target),
        Some(reason) => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (case.case)(&target)));
            assert!(outcome.is_err(), "{name} passes, but is listed as a known failure: {reason}");
        }
    }
}

/// The backend under test.
struct Target<'a> {
    harness: &'a dyn Harness,
    connection: Connection,
}

impl Target<'_> {
    /// A new name.
    fn name(&self) -> String {
        format!("conformance-{}{}", new_uuid().simple(), self.harness.suffix())
    }

    /// Creates a mailbox with a new name.
    fn mailbox<T, R>(&self) -> Mailbox<T, R> {
        self.mailbox_with(|options| options)
    }

    fn mailbox_with<T, R>(&self, options: impl FnOnce(Connection) -> Connection) -> Mailbox<T, R> {
        let mailbox = options(self.connection.clone()).mailbox(&self.name()).unwrap();
        mailbox.create().blocking().unwrap();
        mailbox
    }

    fn limits(&self) -> Limits {
        let mailbox: Mailbox<(), ()> = self.connection.mailbox(&self.name()).unwrap();
        *mailbox.limits()
    }

    /// Whether the backend can delete idle mailboxes.
    fn supports_idle_expiry(&self) -> bool {
        let opened = self.connection.clone().idle_expiry(Limits::LONGEST).mailbox::<(), (), Json>(&self.name());
        !matches!(opened, Err(Error::Unsupported { .. }))
    }

    fn ticks(&self, count: u32) -> Duration {
        self.harness.tick() * count
    }

    fn pass(&self, ticks: u32) {
        self.harness.advance(self.ticks(ticks));
    }
}

fn send_all(mailbox: &Mailbox<u32, u32>, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        mailbox.send(&number).blocking().unwrap();
    }
}

/// Receives one batch of messages, without waiting for any.
fn receive_all(mailbox: &Mailbox<u32, u32>, target: &Target<'_>) -> Vec<crate::Message<u32, u32>> {
    mailbox
        .receive()
        .max_messages(mailbox.limits().max_batch.min(10))
        .visibility_timeout(target.ticks(100))
        .blocking()
        .unwrap()
}

/// Whether a single message can be delayed. If not, checks that a delay is refused.
fn can_delay(mailbox: &Mailbox<u32, u32>, target: &Target<'_>) -> bool {
    if !mailbox.limits().max_delay.is_zero() {
        return true;
    }
    let refused = mailbox.send(&0).delay(target.ticks(1)).blocking();
    assert!(matches!(refused, Err(Error::InvalidParameter { parameter: "delay", .. })), "{refused:?}");
    false
}

fn bodies(messages: &[crate::Message<u32, u32>]) -> Vec<u32> {
    messages.iter().map(|message| message.body).collect()
}

fn assert_expired(result: Result<(), Error>) {
    assert!(matches!(result, Err(Error::ReceiptHandleExpired { .. })), "{result:?}");
}

/// An operation that is waiting, and a channel that receives its wake-ups.
struct Waiting<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    waker: Waker,
    woken: mpsc::Receiver<()>,
}

/// A waker that sends each wake-up to a channel.
struct ChannelWaker(mpsc::Sender<()>);

impl Wake for ChannelWaker {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

impl<T> Waiting<T> {
    /// Starts an operation, which must not be ready at its first poll.
    fn start(operation: impl IntoFuture<Output = T> + 'static) -> Self {
        let (sender, woken) = mpsc::channel();
        let waker = Waker::from(Arc::new(ChannelWaker(sender)));
        let mut waiting = Waiting { future: Box::pin(operation.into_future()), waker, woken };
        assert!(waiting.poll().is_none(), "the operation is ready at once instead of waiting");
        waiting
    }

    fn poll(&mut self) -> Option<T> {
        match self.future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Polls the operation after each wake-up until it is ready.
    fn finish(mut self) -> T {
        loop {
            self.woken.recv_timeout(Duration::from_secs(30)).expect("the operation is not woken");
            if let Some(output) = self.poll() {
                return output;
            }
        }
    }
}
