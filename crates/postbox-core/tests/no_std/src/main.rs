//! Mailboxes, futures, priorities and an actor, with `core` and `alloc` only. The exit status is 0
//! on success, else the number of the failed check.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::rc::Rc;
use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_int, c_void};
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Waker};

use postbox_core::shared::mailbox::*;
use postbox_core::{Actor, BoundedMailbox, MessageLoop, PriorityMailbox, Turn};

#[link(name = "c")]
unsafe extern "C" {
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void;
    fn free(pointer: *mut c_void);
    fn abort() -> !;
}

struct Libc;

// SAFETY: `aligned_alloc` returns memory of the given size and alignment, or null; `free` releases
// it.
unsafe impl GlobalAlloc for Libc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the alignment is a power of two, and the size is a multiple of it.
        unsafe { aligned_alloc(layout.align().max(8), layout.pad_to_align().size().next_multiple_of(8)).cast() }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _: Layout) {
        // SAFETY: the pointer came from `aligned_alloc`.
        unsafe { free(pointer.cast()) }
    }
}

#[global_allocator]
static ALLOCATOR: Libc = Libc;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: `abort` has no preconditions.
    unsafe { abort() }
}

struct Sum(u32);

impl Actor for Sum {
    type Message = u32;
    type Error = ();

    fn receive(&mut self, message: u32) -> Result<(), ()> {
        self.0 += message;
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn main() -> c_int {
    let mut context = Context::from_waker(Waker::noop());

    let mailbox = BoundedMailbox::new(1);
    let producer = mailbox.producer();
    if producer.try_send(1).is_err() || producer.try_send(2) != Err(QueueError::Full(2)) {
        return 1;
    }
    let mut second = pin!(producer.send(2));
    if second.as_mut().poll(&mut context).is_ready() || mailbox.dequeue() != Some(1) {
        return 2;
    }
    if second.as_mut().poll(&mut context).is_pending() || mailbox.dequeue() != Some(2) {
        return 3;
    }

    let (local, sender) = SingleThread.build_default_mailbox();
    if sender.try_send(Rc::new(7)).is_err() || local.dequeue().as_deref() != Some(&7) {
        return 4;
    }

    let priority = PriorityMailbox::new(|n: &i64| *n);
    for n in (0..1000).rev() {
        if !priority.enqueue(n) {
            return 5;
        }
    }
    if (0..1000).any(|n| priority.dequeue() != Some(n)) {
        return 6;
    }

    let mut actor = MessageLoop::new(Sum(0), BoundedMailbox::new(8));
    for n in 0..5 {
        actor.send(n);
    }
    if actor.run_turn() != Turn::Idle || actor.actor().0 != 10 { 7 } else { 0 }
}
