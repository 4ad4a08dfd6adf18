//! Peers in processes of their own.

use std::process::Command;

use super::Folder;
use crate::peer_process::{PeerProcess, build, built, source};
use crate::report::{Contender, Settings};

/// The peers that have to be built or installed first; `--peers` asks for them.
pub(crate) const PEERS: [&str; 2] = ["apalis", "python"];

/// Those that were asked for, one cycle at a time.
pub(super) fn peers(settings: &Settings, folder: &Folder, level: &str) -> Vec<Contender<'static>> {
    let mut contenders = Vec::new();
    // It links another SQLite than Postbox does, and a program can have only one: it is a program of its own.
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
