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
//! postbox::conformance::run(&Fake(FakeBackend::new()), "finish::a_lease_ends_at_its_deadline");
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
mod finish;
mod lifecycle;
mod property;
mod receive;
mod replies;
mod reply_store;
mod send;

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
    fn differs(&self, _case: &str) -> Option<&'static str> {
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
    case: fn(&Place<'_>),
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
                ids_are_unique_and_those_of_the_deliveries,
                first_deliveries_are_in_order,
                a_delayed_message_is_invisible_until_its_time,
                messages_are_ordered_by_the_moment_they_become_visible,
                large_empty_and_binary_bodies_survive,
                all_codecs_work,
                a_full_mailbox_refuses_until_there_is_room,
                a_batch_is_sent_in_order_with_a_result_each,
                what_cannot_be_encoded_is_not_sent,
                a_repeated_id_is_the_same_send,
                an_id_of_another_body_is_refused,
                a_moved_message_keeps_its_times_and_its_content_type,
            }
            receive {
                nothing_there_is_an_empty_answer,
                a_batch_takes_what_is_there_and_does_not_wait_to_fill,
                a_received_message_is_invisible_to_others,
                a_wait_ends_with_nothing_when_its_time_is_up,
                a_wait_wakes_for_a_message,
                a_wait_wakes_for_a_delayed_message,
                a_wait_wakes_for_an_ended_lease,
                a_wait_wakes_for_a_message_given_back,
                a_dropped_wait_strands_nothing,
                a_woken_wait_that_is_dropped_passes_its_wake_up_on,
                waiting_consumers_get_one_message_each,
                no_visibility_at_all_delivers_once_per_call,
                a_body_that_cannot_be_decoded_spoils_no_batch,
                a_body_in_another_codec_is_refused,
                consumers_on_threads_share_without_loss_or_duplicate,
                a_stream_gives_all_and_gives_back_what_it_did_not_hand_out,
            }
            finish {
                an_acknowledged_message_is_gone,
                a_message_given_back_comes_at_once_at_the_tail,
                a_message_given_back_with_a_delay_comes_after_it,
                a_lease_ends_at_its_deadline,
                a_consumer_that_dies_gives_its_message_back,
                an_old_receipt_does_nothing_to_the_next_delivery,
                a_receipt_is_good_once,
                an_extension_counts_from_now,
                an_extension_never_shortens,
                a_purge_ends_leases,
                a_batch_is_acknowledged_with_a_result_each,
                a_lease_without_its_body_has_the_same_acts,
                an_act_can_be_tried_again_after_a_refusal,
                a_released_message_is_at_its_old_place_and_not_counted,
                a_released_receipt_is_good_for_nothing,
                a_release_after_other_deliveries_keeps_the_order,
                a_released_group_stays_in_order,
            }
            extremes {
                sends_take_any_delay_and_expiry_within_their_limits,
                leases_take_any_length_within_their_limit,
                replies_take_any_time_within_their_limit,
                numbers_of_any_size_are_taken,
                texts_of_any_kind_are_kept_or_refused,
                headers_are_bounded_in_number_and_size,
                a_backend_without_limits_takes_any_duration,
            }
            drops {
                a_dropped_send_is_the_same_send_when_it_is_repeated,
                dropped_sends_are_stored_once_or_not_at_all,
                a_dropped_receive_gives_back_what_it_took,
                a_dropped_act_is_done_once_when_it_is_repeated,
                a_dropped_cancel_purge_or_delete_is_done_when_it_is_repeated,
                a_dropped_request_or_answer_can_be_repeated,
            }
            lifecycle {
                counts_are_by_state,
                a_purge_removes_all_and_says_how_many,
                peeking_delivers_nothing,
                handles_of_one_name_are_one_mailbox,
                a_mailbox_is_created_and_deleted,
                mailboxes_are_listed,
                closing_concerns_this_handle_and_its_clones,
                what_is_leased_can_be_finished_after_closing,
                mailboxes_are_told_apart,
                settings_are_in_force_after_a_delete,
                the_settings_that_were_given_last_are_in_force,
            }
            dead_letters {
                deliveries_are_counted_and_then_it_is_over,
                a_crashed_consumer_counts_too,
                a_released_message_is_no_dead_letter,
                a_message_is_dead_lettered_by_request,
                a_request_can_be_dead_lettered_and_answered_after_a_redrive,
                dead_letters_are_redriven_and_purged,
                a_body_that_cannot_be_decoded_ends_there,
            }
            extras {
                a_deduplication_id_is_one_message_within_the_window,
                a_group_is_delivered_in_order_one_at_a_time,
                a_group_waits_for_the_message_that_comes_back,
                a_group_goes_on_past_messages_that_have_expired,
                a_group_goes_on_past_messages_whose_deliveries_are_spent,
                a_mailbox_with_a_delayed_or_leased_message_is_not_idle,
                a_message_expires_unless_it_is_being_delivered,
                a_wait_wakes_when_an_expiry_frees_a_group,
                a_delayed_message_is_cancelled_until_it_is_visible,
            }
            errors {
                durations_beyond_the_limit_are_named,
                batches_beyond_the_limit_are_named,
                messages_beyond_the_limit_are_named,
                names_and_attributes_are_checked,
                settings_out_of_range_are_named,
                portable_limits_hold_a_program_to_what_every_backend_allows,
            }
            replies {
                a_request_is_answered,
                a_wait_for_a_reply_wakes_when_it_comes,
                a_wait_ends_in_time_and_can_be_repeated,
                a_reply_is_polled_and_kept_by_the_handle,
                a_reply_expires,
                a_wait_does_not_sleep_past_the_expiry,
                a_reply_is_cancelled,
                a_wait_wakes_when_the_reply_is_cancelled,
                a_reply_is_found_again_by_its_id,
                a_request_is_not_acknowledged_without_an_answer,
                a_message_that_expects_none_takes_no_reply,
                a_lost_lease_writes_no_reply,
                an_answer_after_a_cancel_finishes_the_message,
                a_second_answer_finishes_the_message,
                a_failed_request_leaves_nothing_behind,
                a_repeated_request_awaits_the_same_reply,
                a_channel_is_written_once,
            }
            reply_store {
                an_entry_is_created_once,
                an_entry_is_resolved_once,
                a_cancelled_entry_takes_no_answer,
                a_resolved_entry_is_consumed_once,
                an_expired_entry_takes_no_answer,
                resolved_and_cancelled_entries_expire_too,
                an_entry_is_deleted,
                expired_entries_are_scanned_and_cleaned_up,
                what_was_never_there_is_settled,
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
    let place = Place { harness, connection: harness.connect() };
    match harness.differs(name) {
        None => (case.case)(&place),
        Some(reason) => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (case.case)(&place)));
            assert!(outcome.is_err(), "{name} holds, although it is said that: {reason}");
        }
    }
}

/// The backend under test.
struct Place<'a> {
    harness: &'a dyn Harness,
    connection: Connection,
}

impl Place<'_> {
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
fn receive_all(mailbox: &Mailbox<u32, u32>, place: &Place<'_>) -> Vec<crate::Message<u32, u32>> {
    mailbox
        .receive()
        .max_messages(mailbox.limits().max_batch.min(10))
        .visibility_timeout(place.ticks(100))
        .blocking()
        .unwrap()
}

/// Whether messages can be delayed here one by one. Where they cannot, that is said.
fn can_delay(mailbox: &Mailbox<u32, u32>, place: &Place<'_>) -> bool {
    if !mailbox.limits().max_delay.is_zero() {
        return true;
    }
    let refused = mailbox.send(&0).delay(place.ticks(1)).blocking();
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
