//! Disks that fail or are full: operations return errors, confirmed operations are kept, and mailboxes recover.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postbox::sqlite::rusqlite;
use postbox::*;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::disk::{Failure, Fault, Kind, Survivors, Which};
use super::workload::{Jobs, Workload};
use super::{Machine, check_file, open, seeds};

const fn from_now_on(which: Which, failure: Failure) -> Fault {
    Fault { which, nth: 0, failure, is_partial: false, is_lasting: true }
}

const fn once(which: Which, nth: u64, failure: Failure) -> Fault {
    Fault { which, nth, failure, is_partial: false, is_lasting: false }
}

/// Whether an error names the file, says what to do, and is transient.
fn is_clear(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::Connection { transient: true, source: Some(_), .. })
        && text.contains("/a.db: ")
        && (text.contains("the disk is full; make room") || text.contains("the disk failed"))
}

#[test]
fn a_failing_or_full_disk_is_an_error_and_the_mailbox_recovers() {
    let machine = Machine::new(0);
    let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
    jobs.send(&0).blocking().unwrap();
    let faults = [
        (from_now_on(Which::Any, Failure::Full), "the disk is full; make room"),
        (from_now_on(Which::Any, Failure::Broken), "the disk failed"),
        (from_now_on(Which::Only(Kind::Write), Failure::Broken), "the disk failed"),
        (from_now_on(Which::Only(Kind::Sync), Failure::Broken), "the disk failed"),
        (Fault { is_partial: true, ..from_now_on(Which::Any, Failure::Full) }, "the disk is full; make room"),
        (Fault { is_partial: true, ..from_now_on(Which::Any, Failure::Broken) }, "the disk failed"),
    ];
    for (fault, words) in faults {
        machine.disk.break_with(fault);
        let failures = [
            jobs.send(&1).blocking().map(drop),
            jobs.send_batch(&[2, 3]).blocking().unwrap().remove(1).map(drop),
            jobs.receive().blocking().map(drop),
            jobs.receive().wait_time(Duration::from_secs(30)).blocking().map(drop),
            jobs.purge().blocking().map(drop),
        ];
        for failure in failures {
            let error = failure.unwrap_err();
            assert!(matches!(error, Error::Connection { transient: true, .. }), "{error:?}");
            assert!(error.to_string().contains(machine.file().canonicalize().unwrap().to_str().unwrap()), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        // A receive of an empty mailbox needs no write.
        assert_eq!(jobs.approximate_count().blocking().unwrap(), 1);
        machine.disk.heal();
        let message = jobs.receive().blocking().unwrap().remove(0);
        assert_eq!((message.body, message.delivery_count), (0, 1), "what failed has done nothing");
        machine.disk.break_with(fault);
        let error = message.acknowledge().blocking().unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        machine.disk.heal();
        message.acknowledge().blocking().unwrap();
        jobs.send(&0).blocking().unwrap();
    }
    drop(jobs);
    machine.wait_until_closed();
    check_file(&machine.file());
}

#[test]
fn a_receive_that_cannot_be_written_leases_nothing() {
    let machine = Machine::new(0);
    let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
    jobs.send(&1).blocking().unwrap();
    for kind in [Kind::Write, Kind::Sync] {
        machine.disk.break_with(once(Which::Only(kind), 0, Failure::Broken));
        assert!(is_clear(&jobs.receive().blocking().unwrap_err()));
    }
    // The message is visible at once, although the failed receive had a long lease.
    let message = jobs.receive().blocking().unwrap().remove(0);
    assert_eq!((message.body, message.delivery_count), (1, 1));
}

#[test]
fn a_failed_wait_leaves_the_message_to_another_receiver() {
    let machine = Machine::new(0);
    let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
    for round in 0..20 {
        let (say, hear) = std::sync::mpsc::channel();
        for _ in 0..2 {
            let (jobs, say) = (jobs.clone(), say.clone());
            std::thread::spawn(move || say.send(jobs.receive().wait_time(Duration::from_secs(3600)).blocking()));
        }
        // Both receivers wait already or will wait. The send is written, and the first receive of the message fails. If the other
        // receiver is not woken, the test hangs.
        std::thread::sleep(Duration::from_millis(5));
        machine.disk.break_with(once(Which::Only(Kind::Sync), 1, Failure::Broken));
        jobs.send(&round).blocking().unwrap();
        let first = hear.recv().unwrap();
        let failed = first.is_err();
        let taken = first.unwrap_or_else(|error| {
            assert!(is_clear(&error), "{error:?}");
            hear.recv().unwrap().unwrap()
        });
        assert_eq!(taken.iter().map(|message| message.body).collect::<Vec<_>>(), [round]);
        machine.disk.heal();
        taken[0].acknowledge().blocking().unwrap();
        if !failed {
            // The failed receive returns later, or none failed because the receive shared the send's transaction.
            jobs.send(&round).blocking().unwrap();
            let message = match hear.recv().unwrap() {
                Ok(mut messages) => messages.remove(0),
                Err(_) => jobs.receive().blocking().unwrap().remove(0),
            };
            message.acknowledge().blocking().unwrap();
        }
    }
}

#[test]
fn settings_that_cannot_be_written_are_written_later() {
    let machine = Machine::new(0);
    drop(open::<u32, ()>(&machine.file()).unwrap());
    let uri = format!("sqlite://{}/jobs?max_size=1", machine.file().display());
    let jobs: Mailbox<u32> = postbox::open(uri).blocking().unwrap();
    machine.disk.break_with(from_now_on(Which::Any, Failure::Full));
    assert!(is_clear(&jobs.send(&1).blocking().unwrap_err()));
    machine.disk.heal();
    jobs.send(&1).blocking().unwrap();
    assert!(matches!(jobs.send(&2).blocking(), Err(Error::MailboxFull { .. })));
}

/// Retries until `act` succeeds. Each failure must be a clear error.
fn insist<T>(mut act: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        match act() {
            Ok(value) => return value,
            Err(error) => assert!(is_clear(&error), "{error:?}"),
        }
    }
}

#[test]
fn every_write_may_fail() {
    let steps = |machine: &Machine| {
        let jobs: Mailbox<u32> = insist(|| open(&machine.file()));
        let connection = rusqlite::Connection::open(machine.file()).unwrap();
        let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        drop(connection);
        insist(|| jobs.send(&1).blocking());
        insist(|| jobs.send(&2).blocking());
        let message = insist(|| jobs.receive().blocking()).remove(0);
        assert_eq!((message.body, message.delivery_count), (1, 1));
        insist(|| message.acknowledge().blocking());
        drop((message, jobs));
        // If closing the last connection fails to remove its files, the next connection removes them.
        let jobs: Mailbox<u32> = insist(|| open(&machine.file()));
        insist(|| jobs.send(&3).blocking());
        let messages = insist(|| jobs.receive().max_messages(10).blocking());
        assert_eq!(messages.iter().map(|message| message.body).collect::<Vec<_>>(), [2, 3]);
        check_file(&machine.file());
    };
    let whole = Machine::new(0);
    steps(&whole);
    let events = whole.disk.events();
    for nth in 0..events {
        for failure in [Failure::Broken, Failure::Full] {
            for is_partial in [false, true] {
                let machine = Machine::new(nth);
                machine.disk.break_with(Fault { is_partial, ..once(Which::Any, nth, failure) });
                println!("{failure:?} at {nth} of {events}, partial: {is_partial}");
                steps(&machine);
            }
        }
    }
}

/// At random, injects another fault or ends one.
fn stir(machine: &Machine, random: &mut StdRng, injected: &AtomicU32) {
    if machine.disk.is_broken() {
        if random.random_bool(0.1) {
            machine.disk.heal();
        }
    } else if random.random_bool(0.1) {
        let which = match random.random_range(0..6) {
            0 => Which::Only(Kind::Write),
            1 | 2 => Which::Only(Kind::Sync),
            3 => Which::Only(Kind::Truncate),
            4 => Which::Database,
            _ => Which::Any,
        };
        let failure = if random.random_bool(0.3) { Failure::Full } else { Failure::Broken };
        let (is_partial, is_lasting) = (random.random_bool(0.5), random.random_bool(0.3));
        machine.disk.break_with(Fault { which, nth: random.random_range(0..60), failure, is_partial, is_lasting });
        injected.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn nothing_is_lost_on_a_disk_that_fails() {
    let (mut failures, mut sent, mut finished) = (0, 0, 0);
    let injected = AtomicU32::new(0);
    for seed in seeds("POSTBOX_STORAGE_FAULTS", 8) {
        println!("seed {seed}");
        let machine = Machine::new(seed);
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        let workload = Workload::new(&machine.disk)
            .may_fail(is_clear)
            .after_each(|| stir(&machine, &mut random.lock().unwrap(), &injected));
        let jobs: Jobs = open(&machine.file()).unwrap();
        workload.run(&jobs, &machine.file(), seed, 4, 150);
        machine.disk.heal();
        failures += machine.disk.failures();
        // Check the data on the disk after all failures, then the file as the program sees it through the same handle.
        let folder = tempfile::tempdir().unwrap();
        machine.disk.power_cut(Survivors::Some, folder.path());
        let image = folder.path().join("a.db");
        workload.check(&open(&image).unwrap(), &image, false);
        workload.check(&jobs, &machine.file(), true);
        let returned = workload.returned();
        (sent, finished) = (sent + returned.0, finished + returned.1);
    }
    println!("{} faults, {failures} failures; {sent} sends, {finished} finished", injected.into_inner());
    assert!(failures > 0 && sent > 0 && finished > 0);
}
