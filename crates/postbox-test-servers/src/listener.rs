//! A TCP listener that can stop and resume listening on the same port.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::supervisor::{Port, eventually, lock};

/// Listens on a free port of the loopback address, with a thread that accepts connections.
pub(crate) struct Listener {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    refused: bool,
    ended: bool,
    listening: bool,
    /// The client port of the connection that [`Listener::accept_pending`] opens to this listener.
    probe: Option<u16>,
}

impl Listener {
    /// Starts to listen, and calls `handle` with each connection, one at a time.
    pub(crate) fn open(handle: impl FnMut(TcpStream) + Send + 'static) -> Listener {
        let (port, listener) = loop {
            let port = Port::reserve();
            if let Ok(listener) = TcpListener::bind(("127.0.0.1", port.number)) {
                break (port, listener);
            }
        };
        let state = State { listening: true, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let number = port.number;
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || shared.accept(&port, listener, handle)
        });
        Listener { port: number, shared, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Waits until all connections that clients have opened before this call are handled. It opens a connection itself,
    /// and waits until that one is accepted.
    pub(crate) fn accept_pending(&self) {
        let mut state = lock(&self.shared.state);
        // The accepting thread needs the lock, so it sees the probe's port before it handles the probe.
        let Ok(probe) = TcpStream::connect(("127.0.0.1", self.port)) else { return };
        state.probe = Some(probe.local_addr().expect("a socket").port());
        drop(state);
        self.wait("accepting the probe connection", |state| state.probe.is_none());
    }

    /// Stops listening, so that new connections are refused.
    pub(crate) fn refuse(&self) {
        self.accept_pending();
        self.change(|state| state.refused = true);
        // A connection wakes the accepting thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.wait("closing the port", |state| !state.listening);
    }

    /// Ends [`Listener::refuse`].
    pub(crate) fn accept(&self) {
        self.change(|state| state.refused = false);
        self.wait("opening the port", |state| state.listening);
    }

    /// Stops listening for good. `handle` is not called after this returns.
    pub(crate) fn close(&mut self) {
        self.change(|state| state.ended = true);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().map(JoinHandle::join);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.shared.state));
        self.shared.changed.notify_all();
    }

    fn wait(&self, what: &str, until: impl Fn(&State) -> bool) {
        eventually(what, || if until(&lock(&self.shared.state)) { Ok(()) } else { Err(String::new()) });
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn accept(&self, port: &Port, mut listener: TcpListener, mut handle: impl FnMut(TcpStream)) {
        loop {
            while let Ok((client, from)) = listener.accept() {
                let mut state = lock(&self.state);
                if state.probe == Some(from.port()) {
                    state.probe = None;
                    continue;
                }
                if state.ended {
                    return;
                }
                if state.refused {
                    break;
                }
                drop(state);
                handle(client);
            }
            // A process that another thread is starting may hold a copy of the socket, so closing it is not enough.
            let _ = TcpStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
            let mut state = lock(&self.state);
            state.listening = false;
            state.probe = None;
            while state.refused && !state.ended {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.ended {
                return;
            }
            listener = TcpListener::bind(("127.0.0.1", port.number)).expect("the same port again");
            state.listening = true;
        }
    }
}
