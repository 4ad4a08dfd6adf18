//! Random operations on every kind of mailbox, compared with a simple model.

use std::collections::VecDeque;

use postbox_core::shared::mailbox::*;
use postbox_core::{BoundedMailbox, PriorityMailbox};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    Offer(u8),
    OfferControl(u8),
    Poll,
    Drain(usize),
    Stash,
    Unstash,
    Suspend,
    Resume,
    Close,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => any::<u8>().prop_map(Operation::Offer),
        2 => any::<u8>().prop_map(Operation::OfferControl),
        10 => Just(Operation::Poll),
        2 => (0usize..6).prop_map(Operation::Drain),
        2 => Just(Operation::Stash),
        1 => Just(Operation::Unstash),
        1 => Just(Operation::Suspend),
        2 => Just(Operation::Resume),
        1 => Just(Operation::Close),
    ]
}

/// The rank of a message and its number of arrival.
type Message = (u8, u32);

/// The specified behaviour of a mailbox, written for readability.
struct Model {
    waiting: VecDeque<Message>,
    control: VecDeque<Message>,
    stash: Vec<Message>,
    capacity: usize,
    policy: OverflowPolicy,
    sorted: bool,
    suspensions: usize,
    closed: bool,
}

impl Model {
    fn rank(&self, message: &Message) -> u8 {
        if self.sorted { message.0 } else { 0 }
    }

    fn insert(&self, queue: &mut VecDeque<Message>, message: Message, before_equals: bool) {
        let rank = self.rank(&message);
        let place = queue
            .iter()
            .position(|other| if before_equals { self.rank(other) >= rank } else { self.rank(other) > rank })
            .unwrap_or(queue.len());
        queue.insert(place, message);
    }

    fn offer(&mut self, message: Message) -> Result<OfferOutcome<Message>, QueueError<Message>> {
        if self.closed {
            return Err(QueueError::Closed(message));
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let room = waiting.len() + self.stash.len() < self.capacity;
        let worst = waiting.iter().map(|other| self.rank(other)).max();
        let answer = match self.policy {
            _ if room => Ok(OfferOutcome::Accepted),
            OverflowPolicy::Grow => {
                // Once, unless stashed control messages exceed the capacity.
                while waiting.len() + self.stash.len() >= self.capacity {
                    self.capacity *= 2;
                }
                Ok(OfferOutcome::Grew(self.capacity))
            }
            OverflowPolicy::DropNewest | OverflowPolicy::DropOldest => {
                let oldest = self.policy == OverflowPolicy::DropOldest;
                match worst {
                    Some(worst) if self.rank(&message) < worst || (oldest && self.rank(&message) == worst) => {
                        let mut of_worst = waiting.iter().enumerate().filter(|(_, other)| self.rank(other) == worst);
                        let place = if oldest { of_worst.next() } else { of_worst.next_back() }.unwrap().0;
                        Ok(OfferOutcome::Evicted(waiting.remove(place).unwrap()))
                    }
                    _ => Ok(OfferOutcome::Rejected(message)),
                }
            }
            _ => Err(QueueError::Full(message)),
        };
        if answer.as_ref().is_ok_and(OfferOutcome::is_accepted) {
            self.insert(&mut waiting, message, false);
        }
        self.waiting = waiting;
        answer
    }

    fn offer_control(&mut self, message: Message) -> Result<(), QueueError<Message>> {
        if self.closed {
            return Err(QueueError::Closed(message));
        }
        if self.control.len() == DEFAULT_SYSTEM_RESERVATION {
            return Err(QueueError::Full(message));
        }
        let mut control = std::mem::take(&mut self.control);
        self.insert(&mut control, message, false);
        self.control = control;
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Message>, QueueError<Message>> {
        if let Some(message) = self.control.pop_front() {
            return Ok(Some(message));
        }
        if self.suspensions == 0
            && let Some(message) = self.waiting.pop_front()
        {
            return Ok(Some(message));
        }
        if self.closed && self.waiting.is_empty() { Err(QueueError::Disconnected) } else { Ok(None) }
    }

    fn unstash(&mut self) -> usize {
        let stash = std::mem::take(&mut self.stash);
        let mut waiting = std::mem::take(&mut self.waiting);
        for message in stash.iter().rev() {
            self.insert(&mut waiting, *message, true);
        }
        self.waiting = waiting;
        stash.len()
    }
}

/// Runs the operations on a mailbox of any kind and mode.
fn check<O: postbox_core::Order<Message>, C: MetadataStorageMode>(
    mailbox: &QueueMailbox<Message, O, C>,
    mut model: Model,
    operations: &[Operation],
) -> Result<(), TestCaseError> {
    let producer = mailbox.producer();
    let mut taken = 0;
    for (number, operation) in (0..).zip(operations) {
        match *operation {
            Operation::Offer(rank) => {
                let answer = model.offer((rank, number));
                taken += usize::from(answer.as_ref().is_ok_and(OfferOutcome::is_accepted));
                prop_assert_eq!(producer.try_offer((rank, number)), answer);
            }
            Operation::OfferControl(rank) => {
                let answer = model.offer_control((rank, number));
                taken += usize::from(answer.is_ok());
                prop_assert_eq!(producer.try_send_control((rank, number)), answer);
            }
            Operation::Poll => prop_assert_eq!(mailbox.try_dequeue(), model.poll()),
            Operation::Drain(max) => {
                let expected: Vec<Message> = (0..max).map_while(|_| model.poll().ok().flatten()).collect();
                let mut batch = Vec::new();
                prop_assert_eq!(mailbox.drain_into(&mut batch, max), expected.len());
                prop_assert_eq!(batch, expected);
            }
            Operation::Stash => {
                let message = model.poll();
                prop_assert_eq!(mailbox.try_dequeue(), message);
                if let Ok(Some(message)) = message {
                    mailbox.stash(message);
                    model.stash.push(message);
                }
            }
            Operation::Unstash => prop_assert_eq!(mailbox.unstash(), model.unstash()),
            Operation::Suspend => {
                mailbox.suspend();
                model.suspensions += 1;
            }
            Operation::Resume => {
                prop_assert_eq!(mailbox.resume(), model.suspensions > 0);
                model.suspensions = model.suspensions.saturating_sub(1);
            }
            // Only late in a run, so that the earlier operations have an effect.
            Operation::Close if number > 60 => {
                mailbox.close();
                model.closed = true;
            }
            Operation::Close => {}
        }
        prop_assert_eq!(mailbox.size(), model.waiting.len() + model.control.len());
        prop_assert_eq!(mailbox.is_empty(), mailbox.size() == 0);
        prop_assert_eq!(mailbox.stashed(), model.stash.len());
        prop_assert_eq!(mailbox.capacity(), Some(model.capacity));
        prop_assert_eq!(mailbox.message_count(), taken);
        prop_assert_eq!(mailbox.is_full(), model.waiting.len() + model.stash.len() >= model.capacity);
    }
    let mut left: Vec<Message> = model.control.into();
    left.extend(&model.stash);
    left.extend(&model.waiting);
    prop_assert_eq!(mailbox.close_and_drain(), left);
    Ok(())
}

fn policies() -> impl Strategy<Value = OverflowPolicy> {
    prop::sample::select(vec![
        OverflowPolicy::Block,
        OverflowPolicy::DropNewest,
        OverflowPolicy::DropOldest,
        OverflowPolicy::Grow,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_mailbox_matches_the_model(
        operations in prop::collection::vec(operation(), 0..200),
        capacity in prop_oneof![1usize..6, Just(100)],
        policy in policies(),
        observed in any::<bool>(),
        few_ranks in any::<bool>(),
    ) {
        let model = |sorted| Model {
            waiting: VecDeque::new(), control: VecDeque::new(), stash: Vec::new(),
            capacity, policy, sorted, suspensions: 0, closed: false,
        };
        let operations: Vec<Operation> = operations
            .into_iter()
            .map(|operation| match operation {
                Operation::Offer(rank) if few_ranks => Operation::Offer(rank % 4),
                other => other,
            })
            .collect();
        let options = MailboxOptions::with_capacity(capacity).with_overflow(policy);

        let bounded = BoundedMailbox::with_overflow(capacity, policy);
        let _signal = observed.then(|| bounded.signal());
        check(&bounded, model(false), &operations)?;

        let (single, _producer) = SingleThread.build_mailbox(options);
        let _signal = observed.then(|| single.signal());
        check(&single, model(false), &operations)?;

        let priority = PriorityMailbox::with_options(|message: &Message| i64::from(message.0), options);
        let _signal = observed.then(|| priority.signal());
        check(&priority, model(true), &operations)?;
    }

    /// Many ranks at a depth at which the heap is used instead of the rings.
    #[test]
    fn a_deep_priority_mailbox_matches_a_sorted_list(
        ranks in prop::collection::vec(any::<i16>(), 0..600),
        takes in prop::collection::vec(0usize..4, 0..600),
        capacity in 50usize..400,
        policy in policies(),
    ) {
        let options = MailboxOptions::with_capacity(capacity).with_overflow(policy);
        let mailbox = PriorityMailbox::with_options(|message: &(i16, usize)| i64::from(message.0), options);
        let mut capacity = capacity;
        let mut sorted: Vec<(i16, usize)> = Vec::new();
        for (number, rank) in ranks.into_iter().enumerate() {
            let message = (rank, number);
            let place = sorted.partition_point(|other| other.0 <= rank);
            match mailbox.queue().try_offer(message) {
                Ok(OfferOutcome::Accepted) => {
                    prop_assert!(sorted.len() < capacity);
                    sorted.insert(place, message);
                }
                Ok(OfferOutcome::Grew(grown)) => {
                    prop_assert_eq!(grown, capacity * 2);
                    capacity = grown;
                    sorted.insert(place, message);
                }
                Ok(OfferOutcome::Evicted(evicted)) => {
                    let worst = sorted.last().unwrap().0;
                    let first = sorted.partition_point(|other| other.0 < worst);
                    let place = if policy == OverflowPolicy::DropOldest { first } else { sorted.len() - 1 };
                    prop_assert_eq!(evicted, sorted.remove(place));
                    let place = sorted.partition_point(|other| other.0 <= rank);
                    sorted.insert(place, message);
                }
                Ok(OfferOutcome::Rejected(back)) => {
                    prop_assert_eq!(back, message);
                    prop_assert!(sorted.len() == capacity && rank >= sorted.last().unwrap().0);
                }
                Err(error) => {
                    prop_assert_eq!(error, QueueError::Full(message));
                    prop_assert_eq!(sorted.len(), capacity);
                }
            }
            for _ in 0..takes.get(number).copied().unwrap_or(0) / 3 {
                let expected = if sorted.is_empty() { None } else { Some(sorted.remove(0)) };
                prop_assert_eq!(mailbox.dequeue(), expected);
            }
        }
        prop_assert_eq!(crate::support::drain(&mailbox), sorted);
    }
}
