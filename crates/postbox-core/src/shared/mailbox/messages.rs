//! Messages with a priority and a channel.

use crate::order::Rank;

/// The way that a message takes through a mailbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PriorityChannel {
    /// With all others.
    #[default]
    Regular,
    /// Past all regular messages, with room of its own, in a mailbox that
    /// [`build_priority_mailbox`](super::PriorityMailboxFactory::build_priority_mailbox) made.
    Control,
}

/// A message that knows how urgent it is. A lower number is more urgent.
pub trait PriorityMessage {
    /// The priority, if it has one.
    fn get_priority(&self) -> Option<i8>;
}

/// What a system message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SystemMessageKind {
    /// Finish the message at hand, then end.
    Stop,
    /// Hold regular messages back.
    Suspend,
    /// Take one suspension back.
    Resume,
    /// Begin anew.
    Restart,
    /// Something that this actor watches has failed or ended.
    Failure,
    /// Something of the application's own.
    Custom(u32),
}

/// A message from the system to an actor, not from one actor to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SystemMessage {
    kind: SystemMessageKind,
    priority: i8,
}

impl SystemMessage {
    /// A system message with the priority that suits its kind: stop before all else, then suspend and resume.
    pub const fn new(kind: SystemMessageKind) -> Self {
        let priority = match kind {
            SystemMessageKind::Stop => -128,
            SystemMessageKind::Suspend | SystemMessageKind::Resume => -96,
            SystemMessageKind::Restart | SystemMessageKind::Failure => -64,
            SystemMessageKind::Custom(_) => 0,
        };
        SystemMessage { kind, priority }
    }

    /// The same message with another priority.
    #[must_use]
    pub const fn with_priority(mut self, priority: i8) -> Self {
        self.priority = priority;
        self
    }

    /// What it asks for.
    pub const fn kind(&self) -> SystemMessageKind {
        self.kind
    }

    /// How urgent it is; lower is more urgent.
    pub const fn priority(&self) -> i8 {
        self.priority
    }
}

impl PriorityMessage for SystemMessage {
    fn get_priority(&self) -> Option<i8> {
        Some(self.priority)
    }
}

/// A message with its priority and channel, and the system message that it stands for, if it does.
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
    /// The priority of an envelope that states none.
    pub const DEFAULT_PRIORITY: i8 = 0;

    /// A regular message.
    pub const fn new(message: M, priority: i8) -> Self {
        Self::with_channel(message, priority, PriorityChannel::Regular)
    }

    /// A message on the given channel.
    pub const fn with_channel(message: M, priority: i8, channel: PriorityChannel) -> Self {
        PriorityEnvelope { message, priority, channel, system_message: None }
    }

    /// A control message.
    pub const fn control(message: M, priority: i8) -> Self {
        Self::with_channel(message, priority, PriorityChannel::Control)
    }

    /// A regular message of the default priority.
    pub const fn with_default_priority(message: M) -> Self {
        Self::new(message, Self::DEFAULT_PRIORITY)
    }

    /// The message.
    pub const fn message(&self) -> &M {
        &self.message
    }

    /// How urgent it is; lower is more urgent.
    pub const fn priority(&self) -> i8 {
        self.priority
    }

    /// The way it takes.
    pub const fn channel(&self) -> PriorityChannel {
        self.channel
    }

    /// The system message that it stands for.
    pub const fn system_message(&self) -> Option<&SystemMessage> {
        self.system_message.as_ref()
    }

    /// Whether it takes the control channel.
    pub const fn is_control(&self) -> bool {
        matches!(self.channel, PriorityChannel::Control)
    }

    /// Changes the message and keeps the rest.
    pub fn map<N>(self, change: impl FnOnce(M) -> N) -> PriorityEnvelope<N> {
        PriorityEnvelope {
            message: change(self.message),
            priority: self.priority,
            channel: self.channel,
            system_message: self.system_message,
        }
    }

    /// Changes the priority and keeps the rest.
    #[must_use]
    pub fn map_priority(mut self, change: impl FnOnce(i8) -> i8) -> Self {
        self.priority = change(self.priority);
        self
    }

    /// The message and its priority.
    pub fn into_parts(self) -> (M, i8) {
        (self.message, self.priority)
    }

    /// The message, its priority and its channel.
    pub fn into_parts_with_channel(self) -> (M, i8, PriorityChannel) {
        (self.message, self.priority, self.channel)
    }
}

impl PriorityEnvelope<SystemMessage> {
    /// A control message of the system message's own priority, which also keeps the system message beside it, so
    /// that it is still known after a [`map`](Self::map).
    pub fn from_system(message: SystemMessage) -> Self {
        PriorityEnvelope { system_message: Some(message), ..Self::control(message, message.priority()) }
    }
}

impl<M> PriorityMessage for PriorityEnvelope<M> {
    fn get_priority(&self) -> Option<i8> {
        Some(self.priority)
    }
}

/// Ranks envelopes by what is written on them.
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
