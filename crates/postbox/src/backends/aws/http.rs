//! HTTP for the SDK, on connections that are driven by whoever asks.
//!
//! HTTP clients usually give each connection a task of its own: a request goes there, its answer comes back, and both wake
//! somebody. Here the future of a request drives its connection itself, and keeps it for the next one when it is done. A connection
//! belongs to the runtime on which it was made, whose threads watch its socket, and serves requests of that one alone.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use aws_sdk_sqs::config::http::{HttpRequest, HttpResponse};
use aws_sdk_sqs::config::{HttpClient, RuntimeComponents, SharedHttpClient};
use aws_smithy_runtime_api::client::connection::{CaptureSmithyConnection, ConnectionMetadata};
use aws_smithy_runtime_api::client::http::{
    HttpConnector as SdkConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::retry::ErrorKind;
use bytes::{Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use http::header::HOST;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tower_service::Service;

use super::queue::{Ends, lock};
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;

/// A connection that nobody has used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// So often whoever drives a connection looks at it in one turn of his.
const TURNS: usize = 16;

type Fault = Box<dyn std::error::Error + Send + Sync>;
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// For clients of the SDK. All of them share their connections.
pub(super) fn client() -> SharedHttpClient {
    SharedHttpClient::new(Http)
}

#[derive(Debug)]
struct Http;

impl HttpClient for Http {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        let (to_connect, to_answer) = (settings.connect_timeout(), settings.read_timeout());
        SharedHttpConnector::new(Asking { to_connect, to_answer })
    }
}

/// How long a connection may take to be made, an answer to begin, and its body to end.
#[derive(Clone, Copy, Debug)]
struct Asking {
    to_connect: Option<Duration>,
    to_answer: Option<Duration>,
}

impl SdkConnector for Asking {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let asking = *self;
        HttpConnectorFuture::new(async move {
            let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
            let answer = asking.ask(request).await?;
            HttpResponse::try_from(answer.map(SdkBody::from)).map_err(|error| ConnectorError::other(error.into(), None))
        })
    }
}

impl Asking {
    async fn ask(self, mut request: Request<SdkBody>) -> Result<Response<Bytes>, ConnectorError> {
        let route = address(&mut request).map_err(ConnectorError::user)?;
        let captures = request.extensions_mut().remove::<CaptureSmithyConnection>();
        loop {
            let (mut line, is_used) = match take(&route).await {
                Some(line) => (line, true),
                None => (Box::pin(self.connect(&route)).await?, false),
            };
            if let Some(captures) = &captures {
                line.shows_itself_to(captures);
            }
            match line.ask(request, self.to_answer).await {
                Ok(answer) => {
                    put(line);
                    return Ok(answer);
                }
                // It had been closed, and nothing of this was sent.
                Err(Failed { unsent: Some(again), .. }) if is_used => request = *again,
                Err(failed) => return Err(failed.error),
            }
        }
    }

    async fn connect(self, route: &Route) -> Result<Line, ConnectorError> {
        let connecting = async {
            let uri =
                Uri::builder().scheme(route.scheme.clone()).authority(route.authority.clone()).path_and_query("/");
            let uri = uri.build()?;
            let stream = match route.scheme == Scheme::HTTPS {
                true => https().call(uri).await?,
                false => MaybeHttpsStream::Http(tcp().call(uri).await?),
            };
            Ok(http1::handshake(stream).await?)
        };
        // Its timers may be those of a runtime that has ended, and are not to be looked at from elsewhere.
        let mut connecting = pin!(connecting);
        let connecting = poll_fn(|context| match Handle::try_current().is_ok_and(|here| here.id() == route.runtime) {
            true => connecting.as_mut().poll(context),
            false => Poll::Ready(Err("the runtime ended on which the connection was being made".into())),
        });
        let made: Option<Result<_, Fault>> = within(self.to_connect, connecting).await;
        let made = made.ok_or_else(|| {
            let longest = self.to_connect.unwrap_or_default();
            let late = format!("no connection to {} within {longest:?}", route.shown());
            ConnectorError::timeout(late.into()).never_connected()
        })?;
        let (sender, connection) = made.map_err(|error| ConnectorError::io(error).never_connected())?;
        Ok(Line { route: route.clone(), sender, connection: Some(Box::pin(connection)), bell: Arc::default() })
    }
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    tcp
}

/// With the certificates of the system. Where there are none, connections fail and say why.
fn https() -> HttpsConnector<HttpConnector> {
    static HTTPS: LazyLock<HttpsConnector<HttpConnector>> = LazyLock::new(|| {
        let with_roots = HttpsConnectorBuilder::new().with_provider_and_native_roots(ring::default_provider());
        let builder = with_roots.unwrap_or_else(|error| {
            tracing::warn!(%error, "no certificates to check those of servers by");
            let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let config = config.with_safe_default_protocol_versions().expect("the provider knows the usual versions");
            let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
            HttpsConnectorBuilder::new().with_tls_config(config)
        });
        builder.https_or_http().enable_http1().wrap_connector(tcp())
    });
    HTTPS.clone()
}

/// Whose connection, and where to.
#[derive(Clone, Debug, PartialEq)]
struct Route {
    runtime: Id,
    scheme: Scheme,
    authority: Authority,
}

impl Route {
    /// Without a name or password that may stand before it.
    fn shown(&self) -> String {
        host(&self.scheme, &self.authority)
    }
}

/// The host, and its port if that is not the usual one.
fn host(scheme: &Scheme, authority: &Authority) -> String {
    let usual = if *scheme == Scheme::HTTPS { 443 } else { 80 };
    match authority.port_u16() {
        Some(port) if port != usual => format!("{}:{port}", authority.host()),
        _ => authority.host().to_string(),
    }
}

/// Where a request goes, which is then in its header and no more in its address.
fn address(request: &mut Request<SdkBody>) -> Result<Route, Fault> {
    let runtime = Handle::try_current()?.id();
    let uri = std::mem::take(request.uri_mut()).into_parts();
    let (Some(scheme), Some(authority)) = (uri.scheme, uri.authority) else {
        return Err("a request goes to a URL with a scheme and a host".into());
    };
    *request.uri_mut() = uri.path_and_query.unwrap_or(PathAndQuery::from_static("/")).into();
    if !request.headers().contains_key(HOST) {
        request.headers_mut().insert(HOST, HeaderValue::try_from(host(&scheme, &authority))?);
    }
    Ok(Route { runtime, scheme, authority })
}

/// A connection, for one request at a time.
struct Line {
    route: Route,
    sender: SendRequest<SdkBody>,
    /// Until it is closed.
    connection: Option<Pin<Box<Connection<Stream, SdkBody>>>>,
    bell: Arc<Bell>,
}

/// Why there is no answer, and the request if nothing of it was sent.
struct Failed {
    unsent: Option<Box<Request<SdkBody>>>,
    error: ConnectorError,
}

impl From<ConnectorError> for Failed {
    fn from(error: ConnectorError) -> Self {
        Failed { unsent: None, error }
    }
}

impl Line {
    async fn ask(&mut self, request: Request<SdkBody>, to_answer: Option<Duration>) -> Result<Response<Bytes>, Failed> {
        let asked = self.sender.try_send_request(request);
        let answered = drive(&mut self.connection, &self.bell, asked);
        let late = || {
            let longest = to_answer.unwrap_or_default();
            ConnectorError::timeout(format!("no answer of {} within {longest:?}", self.route.shown()).into())
        };
        let answer = within(to_answer, answered).await.ok_or_else(late)?;
        let answer = answer.map_err(|mut refused| Failed {
            unsent: refused.take_message().map(Box::new),
            error: failed(refused.into_error()),
        })?;
        let (head, body) = answer.into_parts();
        let read = drive(&mut self.connection, &self.bell, whole(body));
        let body = within(to_answer, read).await.ok_or_else(late)?.map_err(failed)?;
        Ok(Response::from_parts(head, body))
    }

    /// Whether it can be used, as far as one knows. Looks whether it has been closed.
    async fn is_ready(&mut self) -> bool {
        drive(&mut self.connection, &self.bell, std::future::ready(())).await;
        self.connection.is_some() && self.sender.is_ready() && !self.bell.is_poisoned.load(Ordering::Relaxed)
    }

    /// Lets the SDK say that it is not to be used again.
    fn shows_itself_to(&self, captures: &CaptureSmithyConnection) {
        let bell = Arc::downgrade(&self.bell);
        captures.set_connection_retriever(move || {
            let bell = bell.clone();
            let poison = move || {
                if let Some(bell) = bell.upgrade() {
                    bell.is_poisoned.store(true, Ordering::Relaxed);
                }
            };
            Some(ConnectionMetadata::builder().proxied(false).poison_fn(poison).build())
        });
    }
}

/// What comes of something, if it does in time.
async fn within<F: Future>(longest: Option<Duration>, work: F) -> Option<F::Output> {
    match longest {
        None => Some(work.await),
        Some(longest) => unless(Sleep::for_(SystemClock::shared(), longest), work).await,
    }
}

fn failed(error: hyper::Error) -> ConnectorError {
    let (is_user, is_timeout, is_incomplete) = (error.is_user(), error.is_timeout(), error.is_incomplete_message());
    let is_garbled = error.is_parse();
    let error: Fault = error.into();
    match () {
        () if is_timeout => ConnectorError::timeout(error),
        () if is_user => ConnectorError::user(error),
        () if is_garbled => ConnectorError::other(error, None),
        () if is_incomplete => ConnectorError::other(error, Some(ErrorKind::TransientError)),
        () => ConnectorError::io(error),
    }
}

async fn whole(mut body: Incoming) -> Result<Bytes, hyper::Error> {
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame?.into_data() else { continue };
        if first.is_empty() {
            first = data;
        } else {
            if more.is_empty() {
                more.extend_from_slice(&first);
            }
            more.extend_from_slice(&data);
        }
    }
    Ok(if more.is_empty() { first } else { more.freeze() })
}

/// Does something that a connection is needed for.
async fn drive<F: Future>(
    connection: &mut Option<Pin<Box<Connection<Stream, SdkBody>>>>,
    bell: &Arc<Bell>,
    work: F,
) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|context| {
        bell.attend(context, |context| {
            // What it ended with is known to whoever waits for an answer.
            if connection.as_mut().is_some_and(|connection| connection.as_mut().poll(context).is_ready()) {
                *connection = None;
            }
            work.as_mut().poll(context)
        })
    })
    .await
}

/// Calls whoever drives a connection, unless he is at it: what he does for the one side wakes the other.
#[derive(Default)]
struct Bell {
    is_attended: AtomicBool,
    has_rung: AtomicBool,
    waker: AtomicWaker,
    is_poisoned: AtomicBool,
}

impl Bell {
    fn attend<T>(
        self: &Arc<Self>,
        context: &mut Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let bell = Waker::from(Arc::clone(self));
        self.waker.register(context.waker());
        for _ in 0..TURNS {
            self.is_attended.store(true, Ordering::SeqCst);
            self.has_rung.swap(false, Ordering::SeqCst);
            let result = poll(&mut Context::from_waker(&bell));
            self.is_attended.store(false, Ordering::SeqCst);
            if result.is_ready() {
                self.waker.take();
                return result;
            }
            if !self.has_rung.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
        }
        // Others have their turn too. And a runtime may let a task do no more in this one, whoever rings.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::SeqCst);
        if !self.is_attended.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

/// Connections that nobody uses.
static IDLERS: Mutex<Idlers> = Mutex::new(Idlers { lines: Vec::new(), is_watched: false, kept: Vec::new() });

struct Idlers {
    /// The one that was used last is the last one.
    lines: Vec<(Instant, Line)>,
    /// Whether somebody will close those that stay too long.
    is_watched: bool,
    /// The runtimes that close theirs when they end.
    kept: Vec<Id>,
}

impl Idlers {
    /// Those that have been here for too long.
    fn stale(&mut self) -> Vec<(Instant, Line)> {
        let now = Instant::now();
        self.lines.extract_if(.., |(since, _)| now.saturating_duration_since(*since) >= IDLE).collect()
    }
}

/// A connection that was used before.
async fn take(route: &Route) -> Option<Line> {
    loop {
        let (line, stale) = {
            let mut idlers = lock(&IDLERS);
            let stale = idlers.stale();
            let found = idlers.lines.iter().rposition(|(_, line)| line.route == *route);
            (found.map(|at| idlers.lines.remove(at).1), stale)
        };
        drop(stale);
        let mut line = line?;
        if line.is_ready().await {
            return Some(line);
        }
    }
}

/// Keeps a connection, if it can be used again.
fn put(line: Line) {
    let runtime = line.route.runtime;
    let here = Handle::try_current().ok().filter(|here| here.id() == runtime);
    let Some(here) = here.filter(|_| line.connection.is_some() && line.sender.is_ready()) else { return };
    let mut idlers = lock(&IDLERS);
    idlers.lines.push((Instant::now(), line));
    let is_watched = std::mem::replace(&mut idlers.is_watched, true);
    let is_kept = idlers.kept.contains(&runtime);
    if !is_kept {
        idlers.kept.push(runtime);
    }
    drop(idlers);
    if !is_watched {
        let _ = io_thread::spawn(watch());
    }
    if !is_kept {
        // A runtime that ends drops its tasks.
        let ends = Ends(move || close(runtime));
        here.spawn(async move {
            let _ends = ends;
            std::future::pending::<()>().await;
        });
    }
}

/// Closes what a runtime has left.
fn close(runtime: Id) {
    let mut idlers = lock(&IDLERS);
    idlers.kept.retain(|kept| *kept != runtime);
    let left: Vec<_> = idlers.lines.extract_if(.., |(_, line)| line.route.runtime == runtime).collect();
    drop(idlers);
    drop(left);
}

/// Closes what stays too long, until there is nothing.
async fn watch() {
    loop {
        Sleep::for_(SystemClock::shared(), IDLE).await;
        let stale = {
            let mut idlers = lock(&IDLERS);
            let stale = idlers.stale();
            idlers.is_watched = !idlers.lines.is_empty();
            if !idlers.is_watched {
                return drop((idlers, stale));
            }
            stale
        };
        drop(stale);
    }
}

#[cfg(test)]
mod tests;
