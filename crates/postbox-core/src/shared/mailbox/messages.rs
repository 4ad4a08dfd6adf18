//! Envelopes with a priority and a channel, and system messages.
//!
//! ```
//! use postbox_core::shared::mailbox::messages::*;
//! use postbox_core::shared::mailbox::*;
//!
//! let (mailbox, producer) = ThreadSafe.build_priority_mailbox(MailboxOptions::default());
//! producer.try_send(PriorityEnvelope::new("work", 5)).unwrap();
//! producer.try_send(PriorityEnvelope::control("stop", 5)).unwrap();
//! assert_eq!(mailbox.dequeue().unwrap().into_parts().0, "stop");
//! ```

use crate::order::Rank;

/// The channel on which a message is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PriorityChannel {
    /// The channel of ordinary messages.
    #[default]
    Regular,
    /// The channel of control messages. They overtake regular messages and have room of their own,
    /// in a mailbox built by
    /// [`build_priority_mailbox`](super::PriorityMailboxFactory::build_priority_mailbox).
    Control,
}

/// A message with a priority. A lower number is more urgent.
pub trait PriorityMessage {
    /// The priority, if it has one.
    fn get_priority(&self) -> Option<i8>;
}

/// The purpose of a system message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SystemMessageKind {
    /// End after the current message.
    Stop,
    /// Withhold regular messages.
    Suspend,
    /// Undo one suspension.
    Resume,
    /// Start again.
    Restart,
    /// An actor that this one watches has failed or ended.
    Failure,
    /// A purpose defined by the application.
    Custom(u32),
}

/// A message from the runtime to an actor, as opposed to one from another actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SystemMessage {
    kind: SystemMessageKind,
    priority: i8,
}

impl SystemMessage {
    /// Creates a system message with the default priority of its kind: stop first, then suspend and
    /// resume.
    pub const fn new(kind: SystemMessageKind) -> Self {
        let priority = match kind {
            SystemMessageKind::Stop => -128,
            SystemMessageKind::Suspend | SystemMessageKind::Resume => -96,
            SystemMessageKind::Restart | SystemMessageKind::Failure => -64,
            SystemMessageKind::Custom(_) => 0,
        };
        SystemMessage { kind, priority }
    }

    /// Sets the priority.
    #[must_use]
    pub const fn with_priority(mut self, priority: i8) -> Self {
        self.priority = priority;
        self
    }

    /// The purpose of the message.
    pub const fn kind(&self) -> SystemMessageKind {
        self.kind
    }

    /// The priority; a lower number is more urgent.
    pub const fn priority(&self) -> i8 {
        self.priority
    }
}

impl PriorityMessage for SystemMessage {
    fn get_priority(&self) -> Option<i8> {
        Some(self.priority)
    }
}

/// A message with its priority and channel, and the system message that it represents, if any.
///
/// ```
/// use postbox_core::shared::mailbox::messages::*;
///
/// let stop = SystemMessage::new(SystemMessageKind::Stop).with_priority(42);
/// let envelope = PriorityEnvelope::from_system(stop);
/// assert_eq!(envelope.channel(), PriorityChannel::Control);
/// assert_eq!(envelope.system_message().unwrap().priority(), 42);
///
/// let envelope = PriorityEnvelope::new("text", 3).map(str::len).map_priority(|priority| priority + 1);
/// assert_eq!(envelope.into_parts(), (4, 4));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityEnvelope<M> {
    message: M,
    priority: i8,
    channel: PriorityChannel,
    system_message: Option<SystemMessage>,
}

impl<M> PriorityEnvelope<M> {
    /// The priority of an envelope created without one.
    pub const DEFAULT_PRIORITY: i8 = 0;

    /// Creates a regular message.
    pub const fn new(message: M, priority: i8) -> Self {
        Self::with_channel(message, priority, PriorityChannel::Regular)
    }

    /// Creates a message on the given channel.
    pub const fn with_channel(message: M, priority: i8, channel: PriorityChannel) -> Self {
        PriorityEnvelope { message, priority, channel, system_message: None }
    }

    /// Creates a control message.
    pub const fn control(message: M, priority: i8) -> Self {
        Self::with_channel(message, priority, PriorityChannel::Control)
    }

    /// Creates a regular message with the default priority.
    pub const fn with_default_priority(message: M) -> Self {
        Self::new(message, Self::DEFAULT_PRIORITY)
    }

    /// The message.
    pub const fn message(&self) -> &M {
        &self.message
    }

    /// The priority; a lower number is more urgent.
    pub const fn priority(&self) -> i8 {
        self.priority
    }

    /// The channel on which the message is sent.
    pub const fn channel(&self) -> PriorityChannel {
        self.channel
    }

    /// The system message that the envelope represents, if any.
    pub const fn system_message(&self) -> Option<&SystemMessage> {
        self.system_message.as_ref()
    }

    /// Whether the message is sent on the control channel.
    pub const fn is_control(&self) -> bool {
        matches!(self.channel, PriorityChannel::Control)
    }

    /// Transforms the message; the other fields stay the same.
    pub fn map<N>(self, change: impl FnOnce(M) -> N) -> PriorityEnvelope<N> {
        PriorityEnvelope {
            message: change(self.message),
            priority: self.priority,
            channel: self.channel,
            system_message: self.system_message,
        }
    }

    /// Transforms the priority; the other fields stay the same.
    #[must_use]
    pub fn map_priority(mut self, change: impl FnOnce(i8) -> i8) -> Self {
        self.priority = change(self.priority);
        self
    }

    /// Returns the message and its priority.
    pub fn into_parts(self) -> (M, i8) {
        (self.message, self.priority)
    }

    /// Returns the message, its priority and its channel.
    pub fn into_parts_with_channel(self) -> (M, i8, PriorityChannel) {
        (self.message, self.priority, self.channel)
    }
}

impl PriorityEnvelope<SystemMessage> {
    /// Creates a control message with the priority of the system message. The envelope also keeps
    /// the system message beside the body, so it survives a [`map`](Self::map).
    pub fn from_system(message: SystemMessage) -> Self {
        PriorityEnvelope { system_message: Some(message), ..Self::control(message, message.priority()) }
    }
}

impl<M> PriorityMessage for PriorityEnvelope<M> {
    fn get_priority(&self) -> Option<i8> {
        Some(self.priority)
    }
}

/// Ranks envelopes by their priority.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByEnvelope;

impl<M> Rank<PriorityEnvelope<M>> for ByEnvelope {
    fn rank(&self, envelope: &PriorityEnvelope<M>) -> i64 {
        i64::from(envelope.priority)
    }

    fn is_control(&self, envelope: &PriorityEnvelope<M>) -> bool {
        envelope.is_control()
    }
}
