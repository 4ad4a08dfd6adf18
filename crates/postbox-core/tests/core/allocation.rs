//! A warm mailbox allocates nothing per message, and an idle mailbox is small.
#![allow(unsafe_code, reason = "a global allocator is unsafe to implement; this one counts and delegates")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use postbox_core::shared::mailbox::*;
use postbox_core::{BoundedMailbox, PriorityMailbox};
use std::future::Future;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system allocator unchanged, besides thread-local counters.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get() + layout.size() as isize);
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as isize);
        // SAFETY: the caller fulfils the contract of `dealloc`, and the pointer came from
        // `System.alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

fn rounds(mailbox: &dyn Mailbox<u64>, depth: u64) {
    for _ in 0..1000 {
        (0..depth).for_each(|n| assert!(mailbox.enqueue(n)));
        (0..depth).for_each(|_| assert!(mailbox.dequeue().is_some()));
    }
}

#[test]
fn a_warm_bounded_mailbox_allocates_nothing() {
    for depth in [1, 2, 3, 100, 1000] {
        let mailbox = BoundedMailbox::new(1000);
        rounds(&mailbox, depth);
        assert_eq!(allocations(|| rounds(&mailbox, depth)), 0, "depth {depth}");
    }
    let mailbox = PriorityMailbox::with_options(|n: &u64| (*n % 8) as i64, MailboxOptions::with_capacity(1000));
    rounds(&mailbox, 1000);
    assert_eq!(allocations(|| rounds(&mailbox, 1000)), 0, "priority");
}

#[test]
fn waiting_allocates_nothing_once_warm() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    let wait = || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut poll = mailbox.recv();
        assert!(std::pin::Pin::new(&mut poll).poll(&mut context).is_pending());
        producer.try_send(1).unwrap();
        assert!(std::pin::Pin::new(&mut poll).poll(&mut context).is_ready());
    };
    wait();
    assert_eq!(allocations(|| (0..100).for_each(|_| wait())), 0);
}

/// A million idle mailboxes must fit in less than a gigabyte.
#[test]
fn an_empty_mailbox_is_small() {
    let before = BYTES.get();
    let mailboxes: Vec<_> =
        (0..1000).map(|_| ThreadSafe.build_mailbox::<u64>(MailboxOptions::with_capacity(1024))).collect();
    let each = (BYTES.get() - before) as usize / mailboxes.len();
    assert!(each <= 512, "{each} bytes");
}

#[test]
fn the_memory_of_a_burst_is_freed() {
    let mailbox = BoundedMailbox::new(1_000_000);
    let before = BYTES.get();
    (0..1_000_000).for_each(|n: u64| assert!(mailbox.enqueue(n)));
    assert!(BYTES.get() - before >= 8_000_000);
    while mailbox.dequeue().is_some() {}
    let kept = BYTES.get() - before;
    assert!(kept < 300_000, "{kept} bytes kept after a burst of 8 000 000");
}
