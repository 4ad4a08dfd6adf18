//! Measures several processes that use one file. They run this program again.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use postbox::Connection;
use postbox::sqlite::{SqliteBackend, Synchronous};

use super::{Folder, Jobs, SUITE, cycles_of_tasks, runtime};
use crate::peer_process::{PeerProcess, answer};
use crate::report::{Contender, Settings, measure};

/// The first argument of such a process.
pub(crate) const ROLE: &str = "sqlite-process";

/// Compares one, two and four processes, with the same total number of tasks and with the same number of tasks each.
pub(super) fn run(settings: &Settings, folder: &Folder, level: &str) {
    for (tasks, is_each, operations) in [(4, false, 1_000), (64, false, 3_200), (64, true, 6_400)] {
        let scenario = format!("processes/{level}/tasks-{tasks}{}", if is_each { "-each" } else { "" });
        if !settings.includes(&scenario) {
            continue;
        }
        let share = |processes| if is_each { tasks } else { tasks / processes };
        let contenders = [("postbox", 1), ("postbox-2-processes", 2), ("postbox-4-processes", 4)]
            .map(|(system, processes)| contender(folder, level, system, processes, share(processes)));
        measure(settings, SUITE, &scenario, operations, contenders.into());
    }
}

fn contender(
    folder: &Folder,
    level: &str,
    system: &'static str,
    processes: usize,
    tasks_each: usize,
) -> Contender<'static> {
    let (program, file) = (std::env::current_exe().expect("this program has a path"), folder.file());
    let start =
        |_| PeerProcess::start(Command::new(&program).arg(ROLE).arg(&file).arg(level).arg(tasks_each.to_string()));
    let mut running: Vec<PeerProcess> = (0..processes).map(start).collect();
    Contender::new(system, move |operations| {
        let start = Instant::now();
        running.iter_mut().for_each(|process| process.begin(operations / processes));
        for process in &mut running {
            process.end();
        }
        start.elapsed()
    })
}

/// Runs such a process. Its arguments are a file, a durability level and the number of tasks.
pub(crate) fn process(arguments: &[String]) {
    let [file, level, tasks] = arguments else { panic!("{ROLE} FILE LEVEL TASKS") };
    let synchronous = if level == "full" { Synchronous::Full } else { Synchronous::Normal };
    let backend = SqliteBackend::open_with(Path::new(file), synchronous).expect("a file");
    let jobs: Jobs = Connection::new(backend).mailbox("jobs").expect("a mailbox");
    let (runtime, tasks) = (runtime(), tasks.parse().expect("a number of tasks"));
    answer(|operations| cycles_of_tasks(&runtime, &jobs, tasks, 1, operations));
}
