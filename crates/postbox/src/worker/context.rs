//! The context of a message that is handled.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use uuid::Uuid;

use crate::mailbox::id::MessageId;
use crate::runtime::cancellation::Cancellation;
use crate::runtime::lock;
use crate::worker::resources::Resources;

/// The message that a handler handles, without its body. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) message_id: MessageId,
    pub(crate) delivery_count: u32,
    pub(crate) enqueued_at: SystemTime,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) reply_to: Option<String>,
    pub(crate) expects_reply: bool,
    pub(crate) cancellation: Cancellation,
    pub(crate) resources: Resources,
    pub(crate) request: Option<RequestContext>,
}

/// The limits and the session of a request of the main loop.
pub(crate) struct RequestContext {
    pub(crate) request_id: Uuid,
    pub(crate) deadline: Option<SystemTime>,
    pub(crate) units: Option<u64>,
    pub(crate) spent: AtomicU64,
    pub(crate) session_id: Mutex<Option<Uuid>>,
}

/// The units of a budget are spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the budget of {limit} units is spent: {spent} were asked for in all")]
pub struct BudgetExceeded {
    /// The units of the budget.
    pub limit: u64,
    /// The units that were asked for in all.
    pub spent: u64,
}

impl Context {
    pub(crate) fn new(inner: Inner) -> Self {
        Context(Arc::new(inner))
    }

    /// The same message, as a request of the main loop.
    pub(crate) fn for_request(&self, request: RequestContext) -> Self {
        Context::new(Inner {
            message_id: self.0.message_id.clone(),
            delivery_count: self.0.delivery_count,
            enqueued_at: self.0.enqueued_at,
            attributes: self.0.attributes.clone(),
            reply_to: self.0.reply_to.clone(),
            expects_reply: self.0.expects_reply,
            cancellation: self.0.cancellation.clone(),
            resources: self.0.resources.clone(),
            request: Some(request),
        })
    }

    /// The message's id: the same for every delivery of it.
    pub fn message_id(&self) -> &MessageId {
        &self.0.message_id
    }

    /// How often the message was delivered, this time included.
    pub fn delivery_count(&self) -> u32 {
        self.0.delivery_count
    }

    /// When the message was sent.
    pub fn enqueued_at(&self) -> SystemTime {
        self.0.enqueued_at
    }

    /// The attributes that the sender set.
    pub fn attributes(&self) -> &BTreeMap<String, String> {
        &self.0.attributes
    }

    /// The address for the answer, if the sender set one.
    pub fn reply_to(&self) -> Option<&str> {
        self.0.reply_to.as_deref()
    }

    /// Whether the sender waits for a reply in the reply store.
    pub fn expects_reply(&self) -> bool {
        self.0.expects_reply
    }

    /// Cancelled when the lease is lost: another consumer may have the message, so stop if you can.
    pub fn cancellation(&self) -> &Cancellation {
        &self.0.cancellation
    }

    /// The resources of the loop.
    pub fn resources(&self) -> &Resources {
        &self.0.resources
    }

    /// A resource by its type.
    pub fn resource<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.resources.get()
    }

    /// The request's id, in a [`MainLoop`](crate::MainLoop).
    pub fn request_id(&self) -> Option<Uuid> {
        Some(self.0.request.as_ref()?.request_id)
    }

    /// The deadline of the request, if it has one.
    pub fn deadline(&self) -> Option<SystemTime> {
        self.0.request.as_ref()?.deadline
    }

    /// Spends units of the request's budget. Without a budget there is no limit.
    ///
    /// # Errors
    /// [`BudgetExceeded`] if fewer units are left. They count as spent all the same.
    pub fn spend(&self, units: u64) -> Result<(), BudgetExceeded> {
        let Some(request) = &self.0.request else { return Ok(()) };
        let add = |spent: u64| Some(spent.saturating_add(units));
        let before = request.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).unwrap_or(u64::MAX);
        let spent = before.saturating_add(units);
        match request.units {
            Some(limit) if spent > limit => Err(BudgetExceeded { limit, spent }),
            _ => Ok(()),
        }
    }

    /// The units of the budget that are left. `None` without a budget.
    pub fn units_left(&self) -> Option<u64> {
        let request = self.0.request.as_ref()?;
        Some(request.units?.saturating_sub(request.spent.load(Ordering::Relaxed)))
    }

    /// Names the session in which the request was handled; the result carries it.
    pub fn set_session_id(&self, session_id: Uuid) {
        if let Some(request) = &self.0.request {
            *lock(&request.session_id) = Some(session_id);
        }
    }

    pub(crate) fn session_id(&self) -> Option<Uuid> {
        *lock(&self.0.request.as_ref()?.session_id)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("message_id", &self.0.message_id)
            .field("delivery_count", &self.0.delivery_count)
            .field("request_id", &self.request_id())
            .finish_non_exhaustive()
    }
}
