//! A server process that ends with the process that started it, and the ports that servers listen on.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr as InetAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Upper limit of every wait, less than nextest's limit for a test.
const LIMIT: Duration = Duration::from_secs(60);

/// Polls `attempt` until it succeeds. Panics with its last error after [`LIMIT`].
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(reason) if Instant::now() > end => panic!("{what}: not after {LIMIT:?}: {reason}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Locks a mutex, also if another thread has panicked while it held the lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A free port of the loopback address, reserved among all processes that use this type until it is dropped. It is below
/// the ephemeral ports of the system, so a server that is stopped finds its port free at the next start.
pub(crate) struct Port {
    pub(crate) number: u16,
    _claim: UnixListener,
}

impl Port {
    pub(crate) fn reserve() -> Port {
        use std::hash::{BuildHasher as _, RandomState};
        let start = RandomState::new().hash_one(std::process::id());
        for step in 0..10_000 {
            let number = 20_000 + ((start % 10_000 + step) % 10_000) as u16;
            let name = SocketAddr::from_abstract_name(format!("postbox-test-port-{number}")).unwrap();
            let Ok(claim) = UnixListener::bind_addr(&name) else { continue };
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Port { number, _claim: claim };
            }
        }
        panic!("no port from 20000 to 29999 is free");
    }
}

/// The address and the inode of a listening socket, from a line of `/proc/net/tcp` or `tcp6`.
fn listener(line: &str) -> Option<(InetAddr, &str)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    // The address is written as 32-bit words in native byte order.
    let words = (0..address.len() / 8).map(|word| u32::from_str_radix(&address[word * 8..][..8], 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(bytes) => IpAddr::from(bytes),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?),
    };
    let address = InetAddr::new(ip, u16::from_str_radix(port, 16).ok()?);
    (*fields.get(3)? == "0A").then_some((address, *fields.get(9)?))
}

/// The script of the supervisor. Its arguments are the folder and the command of the server. It reads an order from each
/// line of its input, and prints the server's process id when the order is done. When the input ends, because the handle
/// was dropped or its process died, the script kills the server and removes the folder.
const SHELL: &str = r#"
trap '' HUP INT TERM
folder=$1
shift
pid=
while read -r order; do
  case $order in
    start) "$@" >>"$folder/log" 2>&1 </dev/null & pid=$! ;;
    KILL) kill -s KILL "$pid"; wait "$pid"; pid= ;;
    *) kill -s "$order" "$pid" ;;
  esac
  echo "$pid"
done
[ -z "$pid" ] || { kill -s KILL "$pid"; wait "$pid"; }
rm -rf "$folder"
"#;

/// A shell process that starts, signals and finally kills a server. It is the server's parent, so the system does not
/// reuse the server's process id while the shell may signal it.
pub(crate) struct Supervisor {
    shell: Child,
    pipes: Mutex<Option<Pipes>>,
    pid: AtomicU32,
    folder: PathBuf,
}

struct Pipes {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Supervisor {
    /// Starts the shell for a command that keeps its files in `folder`. The command does not run yet.
    pub(crate) fn new(folder: PathBuf, command: &[&str]) -> Supervisor {
        let mut shell = Command::new("sh")
            .args(["-c", SHELL, "sh"])
            .arg(&folder)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A new process group keeps signals to the test's group away from the server.
            .process_group(0)
            .spawn()
            .expect("sh");
        let pipes =
            Pipes { orders: shell.stdin.take().unwrap(), answers: BufReader::new(shell.stdout.take().unwrap()) };
        Supervisor { shell, pipes: Mutex::new(Some(pipes)), pid: AtomicU32::new(0), folder }
    }

    fn order(&self, order: &str) -> u32 {
        let mut guard = lock(&self.pipes);
        let pipes = guard.as_mut().expect("the pipes are taken only by drop");
        let mut answer = String::new();
        writeln!(pipes.orders, "{order}").and_then(|()| pipes.answers.read_line(&mut answer)).expect("the supervisor");
        answer.trim().parse().unwrap_or(0)
    }

    pub(crate) fn start(&self) {
        assert_eq!(self.pid(), 0, "the server runs already");
        self.pid.store(self.order("start"), Ordering::Relaxed);
    }

    /// Kills the server and waits until it has ended.
    pub(crate) fn kill(&self) {
        if self.pid.swap(0, Ordering::Relaxed) != 0 {
            self.order("KILL");
        }
    }

    /// Stops the server with SIGSTOP and waits until none of its threads runs.
    pub(crate) fn pause(&self) {
        self.order("STOP");
        eventually("pausing a server", || {
            if self.state() == Some('T') { Ok(()) } else { Err("the server still runs".into()) }
        });
    }

    pub(crate) fn resume(&self) {
        self.order("CONT");
    }

    /// The process id, or 0 after `kill`.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Whether the server was started and has neither ended nor been paused.
    pub(crate) fn is_running(&self) -> bool {
        !matches!(self.state(), None | Some('Z' | 'X' | 'T'))
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state(), None | Some('Z' | 'X'))
    }

    fn state(&self) -> Option<char> {
        let pid = self.pid();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    /// The addresses that the server listens on.
    pub(crate) fn listening(&self) -> Vec<InetAddr> {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).into_iter().flatten().flatten();
        let files: Vec<String> = files
            .filter_map(|file| Some(std::fs::read_link(file.path()).ok()?.to_str()?.to_owned()))
            .filter(|target| target.starts_with("socket:"))
            .collect();
        let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/net/{table}")));
        let sockets = tables.iter().flatten().flat_map(|table| table.lines().skip(1)).filter_map(listener);
        sockets.filter(|(_, inode)| files.contains(&format!("socket:[{inode}]"))).map(|(address, _)| address).collect()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The last 30 lines of the server's output.
    pub(crate) fn log_tail(&self) -> String {
        let log = String::from_utf8_lossy(&std::fs::read(self.folder.join("log")).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.pipes.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        let _ = self.shell.wait();
    }
}
