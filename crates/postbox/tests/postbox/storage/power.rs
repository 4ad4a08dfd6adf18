//! Power cuts: the effects of operations that had returned are in the file afterwards.

use std::path::Path;

use postbox::sqlite::rusqlite;
use postbox::*;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::disk::{Cut, Kind, Survivors, Which};
use super::workload::Workload;
use super::{Machine, check_file, open, seeds};

/// Opens the mailbox in the files that a power cut left.
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
fn confirmed_operations_survive_a_power_cut() {
    let (mut cuts, mut sent, mut finished) = (0, 0, 0);
    for seed in seeds("POSTBOX_POWER_CUTS", 12) {
        let mut random = StdRng::seed_from_u64(seed);
        let machine = Machine::new(seed);
        let which = match random.random_range(0..4) {
            // Cut the power during a checkpoint.
            0 => Which::Database,
            // Cut the power during a commit.
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
        // In the second round the file is opened again, during or after the close of the first connection.
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

/// Creates a mailbox and uses it, step by step. Returns the number of steps before the power cut.
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
    // The last connection writes the log into the database and deletes it.
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
fn every_write_survives_a_power_cut() {
    let whole = Machine::new(0);
    assert_eq!(first_steps(&whole), 5);
    let events = whole.disk.events();
    for nth in 0..events {
        // None or a random part of the unsynced changes survives.
        for seed in 0..4 {
            let survivors = if seed == 0 { Survivors::None } else { Survivors::Some };
            let machine = Machine::new(nth * 4 + seed);
            machine.disk.plan(Cut { which: Which::Any, nth, is_after: false, survivors });
            let steps = first_steps(&machine);
            let (folder, jobs) = after_the_cut::<u32, ()>(&machine, survivors);
            let left: Vec<u32> = jobs.peek(10).blocking().unwrap().into_iter().map(|left| left.body.unwrap()).collect();
            // The next step may have had its effect. The lease of the first message may be on the disk.
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
fn without_full_sync_a_power_cut_loses_messages_but_does_not_damage_the_file() {
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
    // A checkpoint syncs, so the messages are safe.
    machine.disk.power_on();
    checkpoint(&machine.file());
    let (_folder, left) = after_the_cut::<u32, ()>(&machine, Survivors::None);
    assert_eq!(left.approximate_count().blocking().unwrap(), 2);
    // The file is not damaged, whichever part of the changes survives.
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

/// If the sync of a database fails, pages of earlier checkpoints stay pending in the simulated disk. This test shows why.
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

/// The simulated disk is realistic: without syncs, rows are lost and files are damaged.
#[test]
fn a_program_that_never_syncs_loses_and_damages_its_file() {
    let (mut lost, mut damaged, mut whole) = (0, 0, 0);
    for seed in 0..40 {
        let machine = Machine::new(seed);
        let connection = rusqlite::Connection::open(machine.file()).unwrap();
        // The file is created and synced before the rows are written.
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
