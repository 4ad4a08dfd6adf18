//! A port that can be closed and opened again.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::supervisor::{Port, eventually, lock};

/// A free port of the loopback address, and the thread that takes its connections.
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
    /// The port from which the listener connected to itself.
    own: Option<u16>,
}

impl Listener {
    /// Hands every connection to `enter`, one after the other.
    pub(crate) fn open(enter: impl FnMut(TcpStream) + Send + 'static) -> Listener {
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
            move || shared.accept(&port, listener, enter)
        });
        Listener { port: number, shared, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Connections that clients have by now have entered when this returns: they come before its own.
    pub(crate) fn catch_up(&self) {
        let mut state = lock(&self.shared.state);
        // Accepting needs the lock, and by then the port is known.
        let Ok(own) = TcpStream::connect(("127.0.0.1", self.port)) else { return };
        state.own = Some(own.local_addr().expect("a socket").port());
        drop(state);
        self.wait("a connection of the proxy", |state| state.own.is_none());
    }

    /// Listens no more: who connects is refused.
    pub(crate) fn refuse(&self) {
        self.catch_up();
        self.change(|state| state.refused = true);
        // Wakes the thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.wait("a port that is closed", |state| !state.listening);
    }

    /// Ends [`Listener::refuse`].
    pub(crate) fn accept(&self) {
        self.change(|state| state.refused = false);
        self.wait("a port that is open", |state| state.listening);
    }

    /// For good: nobody enters any more when this returns.
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
    fn accept(&self, port: &Port, mut listener: TcpListener, mut enter: impl FnMut(TcpStream)) {
        loop {
            while let Ok((client, from)) = listener.accept() {
                let mut state = lock(&self.state);
                if state.own == Some(from.port()) {
                    state.own = None;
                    continue;
                }
                if state.ended {
                    return;
                }
                if state.refused {
                    break;
                }
                drop(state);
                enter(client);
            }
            // A process that another thread starts has a copy of the socket for a moment, and would keep the port open.
            let _ = TcpStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
            let mut state = lock(&self.state);
            state.listening = false;
            state.own = None;
            while state.refused && !state.ended {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.ended {
                return;
            }
            listener = TcpListener::bind(("127.0.0.1", port.number)).expect("the port that was closed");
            state.listening = true;
        }
    }
}
