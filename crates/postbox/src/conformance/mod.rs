//! The conformance suite: what every backend does, as tests. Feature `conformance`.
//!
//! Whoever writes a backend implements a [`Harness`] and expands the one list of cases to a test each:
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
//! // In a test module: one test per case.
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
//! Cases ask the backend's [`Limits`], never its name. Where a feature is not there, the case checks that the
//! refusal is clear.

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

/// What the suite needs of a backend.
pub trait Harness: Send + Sync {
    /// A connection to the place. The suite makes mailboxes with new names in it.
    fn connect(&self) -> Connection;

    /// Lets so much time pass in the place: moves its clock, or waits.
    fn advance(&self, by: Duration);

    /// The unit of time of the cases: leases and delays are a few of these. Longer than the place takes for a dozen
    /// operations.
    fn tick(&self) -> Duration;

    /// What the names of its mailboxes end with, where that means something.
    fn suffix(&self) -> &'static str {
        ""
    }

    /// How long a name may be. Less than anywhere where the place writes something before it.
    fn longest_name(&self) -> usize {
        80
    }

    /// Why the place under test, which stands for another, does not do what a case says. Such a case has to fail: if it does not,
    /// the place has been mended, and this is to be taken back.
    fn known_failure(&self, _case: &str) -> Option<&'static str> {
        None
    }

    /// Whether time stands still unless it is advanced, so that deadlines can be met to the nanosecond.
    fn is_exact(&self) -> bool {
        false
    }
}

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// `verb::what_holds`.
    pub name: &'static str,
    case: fn(&Target<'_>),
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// The one list. `$callback` gets it after its own arguments.
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

/// Expands the conformance suite to one `#[test]` per case: `postbox::conformance_tests!(harness)`. The expression is
/// evaluated in each test.
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
        /// Every case.
        pub const CASES: &[Case] =
            &[$($(Case { name: concat!(stringify!($verb), "::", stringify!($case)), case: $verb::$case },)*)*];
    };
}

__conformance_list!(__conformance_cases!());

/// Runs one case, by its name.
///
/// # Panics
/// If the backend does not do as it should, or if there is no such case.
pub fn run(harness: &dyn Harness, name: &str) {
    let case = CASES.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("there is no case {name:?}"));
    let target = Target { harness, connection: harness.connect() };
    match harness.known_failure(name) {
        None => (case.case)(&target),
        Some(reason) => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (case.case)(&target)));
            assert!(outcome.is_err(), "{name} holds, although it is said that: {reason}");
        }
    }
}

/// The backend under test.
struct Target<'a> {
    harness: &'a dyn Harness,
    connection: Connection,
}

impl Target<'_> {
    /// A name that nobody has used.
    fn name(&self) -> String {
        format!("conformance-{}{}", new_uuid().simple(), self.harness.suffix())
    }

    /// A new mailbox.
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

    /// Whether the backend can remove idle mailboxes.
    fn keeps_idle_expiry(&self) -> bool {
        let opened = self.connection.clone().idle_expiry(Limits::LONGEST).mailbox::<(), (), Json>(&self.name());
        !matches!(opened, Err(Error::Unsupported { .. }))
    }

    /// The duration of a number of ticks.
    fn ticks(&self, many: u32) -> Duration {
        self.harness.tick() * many
    }

    fn pass(&self, ticks: u32) {
        self.harness.advance(self.ticks(ticks));
    }
}

/// Sends numbers, one after the other.
fn send_all(mailbox: &Mailbox<u32, u32>, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        mailbox.send(&number).blocking().unwrap();
    }
}

/// Receives what is there.
fn receive_all(mailbox: &Mailbox<u32, u32>, target: &Target<'_>) -> Vec<crate::Message<u32, u32>> {
    mailbox
        .receive()
        .max_messages(mailbox.limits().max_batch.min(10))
        .visibility_timeout(target.ticks(100))
        .blocking()
        .unwrap()
}

/// Whether messages can be delayed here one by one. Where they cannot, that is said.
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

/// An operation that waits, and a waker that tells.
struct Waiting<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    waker: Waker,
    woken: mpsc::Receiver<()>,
}

struct Bell(mpsc::Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

impl<T> Waiting<T> {
    /// Starts it; it must have to wait.
    fn start(operation: impl IntoFuture<Output = T> + 'static) -> Self {
        let (bell, woken) = mpsc::channel();
        let waker = Waker::from(Arc::new(Bell(bell)));
        let mut waiting = Waiting { future: Box::pin(operation.into_future()), waker, woken };
        assert!(waiting.poll().is_none(), "there was nothing to wait for");
        waiting
    }

    fn poll(&mut self) -> Option<T> {
        match self.future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Waits until it is woken, and only then looks.
    fn finish(mut self) -> T {
        loop {
            self.woken.recv_timeout(Duration::from_secs(30)).expect("it was not woken");
            if let Some(output) = self.poll() {
                return output;
            }
        }
    }
}
