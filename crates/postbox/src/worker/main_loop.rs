//! The main loop: it answers each request with a result, and failures are results too.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::mailbox::Mailbox;
use crate::mailbox::codec::{Codec, Decode, Encode, Json};
use crate::mailbox::dispatcher::Dispatcher;
use crate::mailbox::id::new_uuid;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::Sleep;
use crate::worker::resources::Resources;
use crate::worker::{
    Backoff, Context, Handler, HandlerError, HandlerFn, LoopHandle, RequestContext, RunLoop, Worker, loop_options,
};

/// What a client asks of a [`MainLoop`].
///
/// ```
/// use postbox::worker::{Budget, MainLoopRequest};
/// use std::time::{Duration, SystemTime};
///
/// let request = MainLoopRequest::new("summarise".to_string())
///     .with_budget(Budget::of_time(Duration::from_secs(60)).and_units(1_000))
///     .with_deadline(SystemTime::now() + Duration::from_secs(300));
/// assert!(request.budget.is_some());
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MainLoopRequest<Q> {
    /// The request itself.
    pub request: Q,
    /// The time and the units that the request may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// After this time the request is not executed, and its result is an error.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "unix_millis_option")]
    pub deadline: Option<SystemTime>,
    /// Resources of the client. They stay in its process and are never sent: a handler has the
    /// [resources](MainLoop::resources) of its loop.
    #[serde(skip)]
    pub resources: Option<Resources>,
    /// Correlates request and result.
    #[serde(default = "new_uuid")]
    pub request_id: Uuid,
    /// When the request was made.
    #[serde(default = "SystemTime::now", with = "unix_millis")]
    pub created_at: SystemTime,
}

impl<Q> MainLoopRequest<Q> {
    /// A request with a new id.
    pub fn new(request: Q) -> Self {
        MainLoopRequest {
            request,
            budget: None,
            deadline: None,
            resources: None,
            request_id: new_uuid(),
            created_at: SystemTime::now(),
        }
    }

    /// Sets the budget.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: SystemTime) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the id.
    #[must_use]
    pub fn with_request_id(mut self, request_id: Uuid) -> Self {
        self.request_id = request_id;
        self
    }
}

/// The limits of a request: time, which the loop enforces, and units, which the handler [spends](Context::spend).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Budget {
    /// The longest time that the handler may run.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "millis_option")]
    pub time: Option<Duration>,
    /// The most units, whatever the handler counts: tokens, calls, rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<u64>,
}

impl Budget {
    /// A limit of time.
    pub const fn of_time(time: Duration) -> Self {
        Budget { time: Some(time), units: None }
    }

    /// A limit of units.
    pub const fn of_units(units: u64) -> Self {
        Budget { time: None, units: Some(units) }
    }

    /// Adds a limit of units.
    #[must_use]
    pub const fn and_units(mut self, units: u64) -> Self {
        self.units = Some(units);
        self
    }
}

/// The result of a request to a [`MainLoop`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MainLoopResult<O> {
    /// The id of the request.
    pub request_id: Uuid,
    /// The output, if the handler succeeded.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub output: Option<O>,
    /// The error, if the handler failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The session, if the handler set one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<Uuid>,
    /// When the request was completed.
    #[serde(default = "SystemTime::now", with = "unix_millis")]
    pub completed_at: SystemTime,
}

/// The error of a handler in another process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {request_id} failed: {message}")]
pub struct RemoteError {
    /// The request.
    pub request_id: Uuid,
    /// The error message of the handler.
    pub message: String,
}

impl<O> MainLoopResult<O> {
    /// A success.
    pub fn success(request_id: Uuid, output: O) -> Self {
        let completed_at = SystemTime::now();
        MainLoopResult { request_id, output: Some(output), error: None, session_id: None, completed_at }
    }

    /// A failure.
    pub fn failure(request_id: Uuid, error: impl fmt::Display) -> Self {
        let completed_at = SystemTime::now();
        MainLoopResult { request_id, output: None, error: Some(error.to_string()), session_id: None, completed_at }
    }

    /// The output, or the error.
    ///
    /// # Errors
    /// [`RemoteError`] with the error message of the handler.
    pub fn into_result(self) -> Result<O, RemoteError> {
        let request_id = self.request_id;
        match (self.error, self.output) {
            (None, Some(output)) => Ok(output),
            (Some(message), _) => Err(RemoteError { request_id, message }),
            (None, None) => Err(RemoteError { request_id, message: "the result has neither output nor error".into() }),
        }
    }
}

/// A [`Worker`] that answers every request. An error, a panic, a spent budget and a deadline that has passed are sent as
/// results, which finishes the request. Only if a result cannot be sent is the request delivered again.
///
/// ```
/// use postbox::{Context, Mailbox, MainLoop};
/// use postbox::worker::{MainLoopRequest, MainLoopResult};
///
/// # postbox_core::wait_for(async {
/// let requests: Mailbox<MainLoopRequest<u32>, MainLoopResult<u32>> = postbox::open("memory://doc-main-loop").await?;
/// let good = requests.send_expecting_reply(&MainLoopRequest::new(20)).await?;
/// let bad = requests.send_expecting_reply(&MainLoopRequest::new(0)).await?;
///
/// let main_loop = MainLoop::new(&requests, |number: u32, _context: Context| async move {
///     100u32.checked_div(number).ok_or("division by zero")
/// });
/// main_loop.max_iterations(2).run().await?;
///
/// assert_eq!(good.wait().await?.into_result().unwrap(), 5);
/// assert_eq!(bad.wait().await?.error.unwrap(), "division by zero");
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
#[must_use = "a loop does nothing unless it is run"]
pub struct MainLoop<Q, O, C = Json> {
    worker: Worker<MainLoopRequest<Q>, MainLoopResult<O>, C>,
}

impl<Q, O, C> MainLoop<Q, O, C>
where
    Q: Send + 'static,
    O: Send + 'static,
    C: Codec + Encode<MainLoopResult<O>> + Decode<MainLoopRequest<Q>>,
{
    /// Answers requests with an async function.
    pub fn new<F, A, E>(requests: &Mailbox<MainLoopRequest<Q>, MainLoopResult<O>, C>, handler: F) -> Self
    where
        F: Fn(Q, Context) -> A + Send + Sync + 'static,
        A: Future<Output = Result<O, E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        Self::with_handler(requests, handler)
    }

    /// Answers requests with a [`Handler`].
    pub fn with_handler<H>(requests: &Mailbox<MainLoopRequest<Q>, MainLoopResult<O>, C>, handler: H) -> Self
    where
        H: Handler<Q, Output = O>,
    {
        let (handler, clock) = (Arc::new(handler), Arc::clone(&requests.core.clock));
        let handler_fn: HandlerFn<MainLoopRequest<Q>, MainLoopResult<O>> = Arc::new(move |request, context| {
            let (handler, clock) = (Arc::clone(&handler), Arc::clone(&clock));
            Box::pin(async move {
                let request_id = request.request_id;
                let mut time = request.budget.and_then(|budget| budget.time);
                if let Some(deadline) = request.deadline {
                    let left = deadline.duration_since(clock.wall()).unwrap_or_default();
                    if left.is_zero() {
                        return Ok(MainLoopResult::failure(request_id, "the deadline had passed; it was not executed"));
                    }
                    time = Some(time.map_or(left, |time| time.min(left)));
                }
                let context = context.for_request(RequestContext {
                    request_id,
                    deadline: request.deadline,
                    units: request.budget.and_then(|budget| budget.units),
                    spent: AtomicU64::new(0),
                    session_id: Mutex::new(None),
                });
                let seen = context.clone();
                let handled =
                    AssertUnwindSafe(async move { handler.handle(request.request, context).await }).catch_unwind();
                let handled = match time {
                    None => Some(handled.await),
                    Some(time) => unless(Sleep::for_(clock, time), handled).await,
                };
                let mut result = match handled {
                    Some(Ok(Ok(output))) => MainLoopResult::success(request_id, output),
                    Some(Ok(Err(error))) => MainLoopResult::failure(request_id, error),
                    Some(Err(panic)) => MainLoopResult::failure(request_id, HandlerError::from_panic(&*panic)),
                    None => MainLoopResult::failure(request_id, "its time was spent before it was done"),
                };
                result.session_id = seen.session_id();
                Ok(result)
            })
        });
        let mut worker = Worker::with_handler_fn(requests.clone(), handler_fn);
        worker.options.warns = true;
        worker.options.substitute = Some(Arc::new(|result: &MainLoopResult<O>, reason| MainLoopResult {
            session_id: result.session_id,
            ..MainLoopResult::failure(result.request_id, format_args!("the output could not be sent: {reason}"))
        }));
        MainLoop { worker }
    }
}

impl<Q, O, C> MainLoop<Q, O, C> {
    loop_options!(worker.options);

    /// The mailbox for the results of requests without an address: the two-mailbox pattern.
    pub fn responses(mut self, responses: &Mailbox<MainLoopResult<O>, (), C>) -> Self {
        self.worker = self.worker.responses(responses);
        self
    }

    /// Controls the loop while it runs.
    pub fn handle(&self) -> LoopHandle {
        self.worker.handle()
    }

    /// Runs until it is shut down, the mailbox is closed, or its iterations are done.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub fn run(self) -> RunLoop<MainLoopRequest<Q>, MainLoopResult<O>, C> {
        self.worker.run()
    }
}

impl<Q, O, C> fmt::Debug for MainLoop<Q, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MainLoop").field(&self.worker).finish()
    }
}

/// Times are sent as milliseconds since the Unix epoch.
mod unix_millis {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let millis = u64::deserialize(deserializer)?;
        let time = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
        time.ok_or_else(|| serde::de::Error::custom(format_args!("{millis} ms since 1970 is out of range")))
    }
}

mod unix_millis_option {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(serde::Serialize, Deserialize)]
    struct Millis(#[serde(with = "super::unix_millis")] SystemTime);

    pub(super) fn serialize<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&time.map(Millis), serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::<Millis>::deserialize(deserializer)?.map(|millis| millis.0))
    }
}

mod millis_option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}
