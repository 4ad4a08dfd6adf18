//! Power cuts: what had returned before is there afterwards.

use std::path::Path;

use postbox::sqlite::rusqlite;
use postbox::*;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::disk::{Cut, Kind, Survivors, Which};
use super::workload::Workload;
use super::{Machine, check_file, open, seeds};

/// A mailbox in what a power cut left.
fn after_the_cut<T: 'static, R: 'static>(
    machine: &Machine,
    survivors: Survivors,
) -> (tempfile::TempDir, Mailbox<T, R>) {
    let folder = tempfile::tempdir().unwrap();
    machine.disk.power_cut(survivors, folder.path());
    let mailbox = open(&folder.path().join("a.db")).unwrap();
    (folder, mailbox)
}

#[test]
fn what_had_returned_survives_a_power_cut() {
    let (mut cuts, mut sent, mut finished) = (0, 0, 0);
    for seed in seeds("POSTBOX_POWER_CUTS", 12) {
        let mut random = StdRng::seed_from_u64(seed);
        let machine = Machine::new(seed);
        let which = match random.random_range(0..4) {
            // In the middle of a checkpoint.
            0 => Which::Database,
            // In the middle of a commit.
            1 => Which::Only(Kind::Sync),
            _ => Which::Any,
        };
        let nth = match which {
            Which::Any => random.random_range(0..8000),
            _ => random.random_range(0..400),
        };
        let survivors = if random.random_bool(0.3) { Survivors::None } else { Survivors::Some };
        let cut = Cut { which, nth, is_after: random.random_bool(0.5), survivors };
        println!("seed {seed}: {cut:?}");
        machine.disk.plan(cut);
        let workload = Workload::new(&machine.disk);
        // The second time the file is opened again, while the first connection is still being closed, or after it.
        for part in 0..2 {
            if part > 0 && random.random_bool(0.5) {
                machine.wait_until_closed();
            }
            let jobs = open(&machine.file()).unwrap();
            workload.run(&jobs, &machine.file(), seed * 2 + part, 4, 120);
        }
        cuts += u32::from(machine.disk.is_cut());
        let (folder, jobs) = after_the_cut(&machine, survivors);
        workload.check(&jobs, &folder.path().join("a.db"), false);
        let returned = workload.returned();
        (sent, finished) = (sent + returned.0, finished + returned.1);
    }
    println!("{cuts} cuts within the work; {sent} sends and {finished} acknowledgements and answers had returned");
    assert!(cuts > 0 && sent > 0 && finished > 0);
}

/// Everything that a mailbox does at first, step by step: says how far it came before the power was cut.
fn first_steps(machine: &Machine) -> u32 {
    let mut steps = 0;
    let mut step = || machine.disk.unless_cut(|| steps += 1);
    let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
    step();
    jobs.send(&1).blocking().unwrap();
    step();
    jobs.send(&2).blocking().unwrap();
    step();
    let first = jobs.receive().blocking().unwrap().remove(0);
    assert_eq!(first.body, 1);
    first.acknowledge().blocking().unwrap();
    step();
    // The last connection writes everything back and deletes the log.
    drop((first, jobs));
    machine.wait_until_closed();
    let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
    jobs.send(&3).blocking().unwrap();
    step();
    drop(jobs);
    machine.wait_until_closed();
    steps
}

#[test]
fn the_power_may_be_cut_at_every_write() {
    let whole = Machine::new(0);
    assert_eq!(first_steps(&whole), 5);
    let events = whole.disk.events();
    for nth in 0..events {
        // Nothing survives, or this and that.
        for seed in 0..4 {
            let survivors = if seed == 0 { Survivors::None } else { Survivors::Some };
            let machine = Machine::new(nth * 4 + seed);
            machine.disk.plan(Cut { which: Which::Any, nth, is_after: false, survivors });
            let steps = first_steps(&machine);
            let (folder, jobs) = after_the_cut::<u32, ()>(&machine, survivors);
            let left: Vec<u32> = jobs.peek(10).blocking().unwrap().iter().map(|left| left.body[0].into()).collect();
            let left: Vec<u32> = left.into_iter().map(|digit| digit - u32::from(b'0')).collect();
            // What came next may be there or not. The lease of the first message may have been on the disk.
            let possible: &[&[u32]] = match steps {
                0 => &[&[]],
                1 => &[&[], &[1]],
                2 => &[&[1], &[1, 2]],
                3 => &[&[1, 2], &[2]],
                4 => &[&[2], &[2, 3]],
                _ => &[&[2, 3]],
            };
            assert!(possible.contains(&&left[..]), "cut at {nth} of {events}, seed {seed}: {steps} steps, {left:?}");
            check_file(&folder.path().join("a.db"));
        }
    }
}

#[test]
fn without_the_sync_a_power_cut_takes_messages_and_leaves_the_file_whole() {
    let machine = Machine::new(0);
    let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
    jobs.send(&1).blocking().unwrap();
    drop(jobs);
    machine.wait_until_closed();
    let fast = format!("sqlite://{}/jobs?synchronous=normal", machine.file().display());
    let jobs: Mailbox<u32> = postbox::open(fast).blocking().unwrap();
    jobs.send(&2).blocking().unwrap();
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 2);
    let (folder, left) = after_the_cut::<u32, ()>(&machine, Survivors::None);
    assert_eq!(
        left.receive().max_messages(10).blocking().unwrap().iter().map(|left| left.body).collect::<Vec<_>>(),
        [1]
    );
    check_file(&folder.path().join("a.db"));
    // A checkpoint syncs: then it is safe.
    machine.disk.power_on();
    checkpoint(&machine.file());
    let (_folder, left) = after_the_cut::<u32, ()>(&machine, Survivors::None);
    assert_eq!(left.approximate_count().blocking().unwrap(), 2);
    // Whatever part of it survives, the file is whole.
    for seed in 0..20 {
        let machine = Machine::new(seed);
        let fast = format!("sqlite://{}/jobs?synchronous=normal", machine.file().display());
        let jobs: Mailbox<String> = postbox::open(fast).blocking().unwrap();
        for _ in 0..10 {
            jobs.send(&"x".repeat(5000)).blocking().unwrap();
        }
        let (folder, left) = after_the_cut::<String, ()>(&machine, Survivors::Some);
        assert!(left.approximate_count().blocking().unwrap() <= 10);
        check_file(&folder.path().join("a.db"));
    }
}

fn checkpoint(file: &Path) {
    let connection = rusqlite::Connection::open(file).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
}

/// What the simulated disk keeps if the sync of a database fails, and why.
#[test]
fn a_checkpoint_beside_a_reader_is_synced_by_the_next_one() {
    let machine = Machine::new(0);
    let connect = || rusqlite::Connection::open(machine.file()).unwrap();
    let checkpoint = |connection: &rusqlite::Connection| -> (i64, i64) {
        let columns = |row: &rusqlite::Row<'_>| Ok((row.get(1)?, row.get(2)?));
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], columns).unwrap()
    };
    let (writer, reader) = (connect(), connect());
    writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    writer.execute_batch("INSERT INTO t VALUES (2)").unwrap();
    let (frames, copied) = checkpoint(&writer);
    assert!(copied > 0 && copied < frames, "{copied} of {frames}");
    assert!(machine.disk.is_pending("a.db"), "an incomplete checkpoint is not synced");
    reader.execute_batch("COMMIT").unwrap();
    let before = machine.disk.writes("a.db");
    assert_eq!(checkpoint(&writer), (frames, frames));
    assert_eq!(machine.disk.writes("a.db") - before, 1, "the next one writes the page of the second row alone");
    assert!(!machine.disk.is_pending("a.db"), "and syncs all");
}

/// The disk of these tests does what it must: without syncs, rows are lost and files are damaged.
#[test]
fn a_program_that_never_syncs_loses_and_damages_its_file() {
    let (mut lost, mut damaged, mut whole) = (0, 0, 0);
    for seed in 0..40 {
        let machine = Machine::new(seed);
        let connection = rusqlite::Connection::open(machine.file()).unwrap();
        // By the time the rows come, the file is there and synced.
        connection.execute_batch("CREATE TABLE t (x INTEGER PRIMARY KEY, y BLOB); CREATE INDEX i ON t (y)").unwrap();
        connection.execute_batch("PRAGMA synchronous = OFF").unwrap();
        for _ in 0..50 {
            connection.execute("INSERT INTO t (y) VALUES (randomblob(500))", []).unwrap();
        }
        let survivors = if seed == 0 { Survivors::None } else { Survivors::Some };
        let folder = tempfile::tempdir().unwrap();
        machine.disk.power_cut(survivors, folder.path());
        let left = rusqlite::Connection::open(folder.path().join("a.db")).unwrap();
        let check = left.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
        let rows = left.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
        match (check.as_deref(), rows) {
            (Ok("ok"), Ok(50)) => whole += 1,
            (Ok("ok"), _) => lost += 1,
            _ => damaged += 1,
        }
        if seed == 0 {
            assert_eq!((lost, damaged, whole), (1, 0, 0), "nothing was synced, so nothing is there");
        }
    }
    println!("{lost} lost rows, {damaged} damaged, {whole} whole");
    assert!(lost > 0 && damaged > 0);
}
