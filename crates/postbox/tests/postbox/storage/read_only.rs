//! Files and folders that cannot be written. The simulated disk refuses the writes, because root ignores permissions.

use std::collections::BTreeMap;
use std::path::Path;

use postbox::*;

use super::disk::{Failure, Fault, Protection, Which};
use super::{Machine, check_file, open};

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| (file.display().to_string(), std::fs::read(&file).unwrap())).collect()
}

/// Asserts that an error names the file, says why, and is permanent.
fn assert_refused<T: std::fmt::Debug>(machine: &Machine, result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Connection { transient: false, .. }), "{error:?}");
    assert!(error.to_string().contains(machine.file().to_str().unwrap()), "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
}

#[test]
fn a_read_only_file_or_folder_is_an_error_and_not_changed() {
    for protection in [Protection::File, Protection::Folder, Protection::All] {
        println!("{protection:?}");
        let machine = Machine::new(0);
        let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
        jobs.send(&1).blocking().unwrap();
        drop(jobs);
        machine.wait_until_closed();
        let before = contents(machine.folder.path());
        machine.disk.protect(protection);
        assert_refused(&machine, open::<u32, ()>(&machine.file()));
        assert_eq!(contents(machine.folder.path()), before);
        machine.disk.protect(Protection::None);
        let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
        assert_eq!(jobs.receive().blocking().unwrap()[0].body, 1);
        check_file(&machine.file());
    }
}

#[test]
fn no_file_is_created_in_a_read_only_folder() {
    for protection in [Protection::Folder, Protection::All] {
        let machine = Machine::new(0);
        machine.disk.protect(protection);
        assert_refused(&machine, open::<u32, ()>(&machine.file()));
        assert!(contents(machine.folder.path()).is_empty());
        machine.disk.protect(Protection::None);
        open::<u32, ()>(&machine.file()).unwrap().send(&1).blocking().unwrap();
    }
}

#[test]
fn a_file_that_is_read_only_for_this_process_may_be_open_in_another() {
    for protection in [Protection::File, Protection::All] {
        let machine = Machine::new(0);
        let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
        jobs.send(&1).blocking().unwrap();
        machine.disk.protect(protection);
        // Use a separate connection, as another program has.
        let apart = format!("sqlite://{}/jobs?synchronous=normal", machine.file().display());
        assert_refused(&machine, postbox::open::<u32, (), Json>(apart).blocking());
        machine.disk.protect(Protection::None);
        assert_eq!(jobs.receive().blocking().unwrap()[0].body, 1);
        check_file(&machine.file());
    }
}

#[test]
fn a_disk_that_becomes_read_only_is_an_error_and_the_mailbox_recovers() {
    let machine = Machine::new(0);
    let jobs: Mailbox<u32> = open(&machine.file()).unwrap();
    jobs.send(&1).blocking().unwrap();
    machine.disk.break_with(Fault {
        which: Which::Any,
        nth: 0,
        failure: Failure::ReadOnly,
        is_partial: false,
        is_lasting: true,
    });
    assert_refused(&machine, jobs.send(&2).blocking());
    assert_refused(&machine, jobs.receive().blocking());
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 1);
    machine.disk.heal();
    let message = jobs.receive().blocking().unwrap().remove(0);
    assert_eq!((message.body, message.delivery_count), (1, 1));
    check_file(&machine.file());
}
