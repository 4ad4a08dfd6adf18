//! Peers that run in a separate process.

use std::process::Command;

use super::Folder;
use crate::peer_process::{PeerProcess, build, built, source};
use crate::report::{Contender, Settings};

/// Peers that must be built or installed first, and run only with `--peers`.
pub(crate) const PEERS: [&str; 2] = ["apalis", "python"];

/// The contenders of the selected peers. They run one cycle at a time.
pub(super) fn peers(settings: &Settings, folder: &Folder, level: &str) -> Vec<Contender<'static>> {
    let mut contenders = Vec::new();
    // apalis links another version of SQLite than Postbox. A program can link only one, so apalis is a separate program.
    if settings.peers.iter().any(|peer| peer == "apalis") {
        contenders.push(contender("apalis-sqlite", Command::new(build("apalis")).arg(folder.file()).arg(level)));
    }
    if settings.peers.iter().any(|peer| peer == "python") {
        for system in ["litequeue", "persist-queue"] {
            let mut python = Command::new("python3");
            python.arg(source("python.py")).arg(built("python")).arg(system).arg(folder.file()).arg(level);
            contenders.push(contender(system, &mut python));
        }
    }
    contenders
}

fn contender(system: &'static str, command: &mut Command) -> Contender<'static> {
    let mut peer = PeerProcess::start(command);
    Contender::new(system, move |cycles| {
        peer.begin(cycles);
        peer.end()
    })
}
