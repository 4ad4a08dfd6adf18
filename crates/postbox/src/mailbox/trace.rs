//! W3C trace context, sent with messages.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};

use rand::RngExt as _;

/// The attribute with the trace context.
pub const TRACEPARENT: &str = "traceparent";
/// The attribute with the state that tracing vendors add to the context.
pub const TRACESTATE: &str = "tracestate";

/// The trace that an operation belongs to, and the span of the operation in it.
///
/// While a handler runs, the context of its message is [current](Self::current), and the messages that the handler sends belong
/// to the same trace. Other programs set the context with `send(&body).trace_context(context)`.
///
/// ```
/// use postbox::trace::TraceContext;
///
/// let context: TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
/// let child = context.child();
/// assert_eq!(child.trace_id(), context.trace_id());
/// assert!(context.is_sampled() && child.is_sampled());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    sampled: bool,
}

/// A context, with the state of vendors.
#[derive(Clone, Debug)]
struct Current {
    context: TraceContext,
    state: Option<Arc<str>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

impl TraceContext {
    /// A new trace.
    pub fn new() -> Self {
        let mut random = rand::rng();
        TraceContext { trace_id: random.random::<u128>().max(1), span_id: random.random::<u64>().max(1), sampled: true }
    }

    /// A new span of the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        TraceContext { span_id: rand::rng().random::<u64>().max(1), ..*self }
    }

    /// The id of the trace.
    pub const fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// The id of the span.
    pub const fn span_id(&self) -> u64 {
        self.span_id
    }

    /// Whether the trace is recorded.
    pub const fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// The context of the future that this thread polls, if it has one.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(|current| current.as_ref().map(|current| current.context))
    }

    /// Whether there is a current context.
    #[inline]
    pub(crate) fn is_set() -> bool {
        CURRENT.with_borrow(Option::is_some)
    }

    /// The state of vendors in the current context.
    pub(crate) fn current_state() -> Option<String> {
        CURRENT.with_borrow(|current| current.as_ref()?.state.as_deref().map(Into::into))
    }

    /// Makes this the current context while `future` runs, on any thread.
    pub fn scope<F: Future>(self, future: F) -> InTrace<F> {
        InTrace { current: Some(Current { context: self, state: None }), future: Box::pin(future) }
    }
}

impl Default for TraceContext {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// The error for a text that is not a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a W3C traceparent")]
pub struct NotATraceContext;

impl FromStr for TraceContext {
    type Err = NotATraceContext;

    fn from_str(text: &str) -> Result<Self, NotATraceContext> {
        let hex = |part: &str, length: usize| {
            let lower = part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            (part.len() == length && lower)
                .then(|| u128::from_str_radix(part, 16).ok())
                .flatten()
                .ok_or(NotATraceContext)
        };
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(NotATraceContext);
        let version = hex(next()?, 2)?;
        let (trace_id, span_id, flags) = (hex(next()?, 32)?, hex(next()?, 16)?, hex(next()?, 2)?);
        // Version 0 has exactly these four parts. Later versions may have more.
        if version == 0xff || trace_id == 0 || span_id == 0 || (version == 0 && parts.next().is_some()) {
            return Err(NotATraceContext);
        }
        Ok(TraceContext { trace_id, span_id: span_id as u64, sampled: flags & 1 == 1 })
    }
}

/// A future with a current [`TraceContext`]: [`TraceContext::scope`].
#[derive(Debug)]
pub struct InTrace<F> {
    current: Option<Current>,
    future: Pin<Box<F>>,
}

impl<F: Future> InTrace<F> {
    /// A future in the trace of a message with these attributes, or in none.
    pub(crate) fn of(attributes: &BTreeMap<String, String>, future: F) -> Self {
        let context = attributes.get(TRACEPARENT).and_then(|text| text.parse::<TraceContext>().ok());
        let current = context.map(|context| Current {
            context: context.child(),
            state: attributes.get(TRACESTATE).map(|state| state.as_str().into()),
        });
        InTrace { current, future: Box::pin(future) }
    }
}

impl<F: Future> Future for InTrace<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        struct Restore(Option<Current>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(self.current.clone()));
        self.future.as_mut().poll(context)
    }
}
