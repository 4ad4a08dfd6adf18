//! Generated TLS certificates.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A new certificate authority, with a server certificate for `localhost` and 127.0.0.1 and a client certificate. Two
/// values do not trust each other. All files are PEM, and are removed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Certificates {
    folder: Arc<tempfile::TempDir>,
}

const CONFIG: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = Postbox tests
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:localhost, IP:127.0.0.1
extendedKeyUsage = serverAuth
[client]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:client
extendedKeyUsage = clientAuth
";

impl Certificates {
    /// Generates new keys and certificates, which are valid for two days.
    pub fn generate() -> Certificates {
        let folder = tempfile::Builder::new().prefix("postbox-tls-").tempdir().expect("a temporary folder");
        let path = folder.path();
        std::fs::write(path.join("openssl.cnf"), CONFIG).expect("a configuration file");
        let request = "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -config openssl.cnf";
        openssl(path, &format!("{request} -x509 -days 2 -extensions ca -keyout ca.key -out ca.crt"));
        for name in ["server", "client"] {
            openssl(path, &format!("{request} -subj /CN={name} -keyout {name}.key -out {name}.csr"));
            let sign = "x509 -req -days 2 -CA ca.crt -CAkey ca.key -CAcreateserial -extfile openssl.cnf";
            openssl(path, &format!("{sign} -extensions {name} -in {name}.csr -out {name}.crt"));
        }
        Certificates { folder: Arc::new(folder) }
    }

    /// The certificate of the authority.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// The certificate of the server.
    pub fn server_certificate(&self) -> PathBuf {
        self.folder.path().join("server.crt")
    }

    /// The key of the server.
    pub fn server_key(&self) -> PathBuf {
        self.folder.path().join("server.key")
    }

    /// The certificate of the client.
    pub fn client_certificate(&self) -> PathBuf {
        self.folder.path().join("client.crt")
    }

    /// The key of the client.
    pub fn client_key(&self) -> PathBuf {
        self.folder.path().join("client.key")
    }
}

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("openssl: {error}; run ./test, which installs it"));
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
