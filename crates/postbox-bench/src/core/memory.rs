//! Measures the size of an empty mailbox or channel with a counting allocator.

use super::SUITE;
use super::channel::{AsyncChan, Channel, Crossbeam, Flume, Kanal, Postbox, Std, Thingbuf, Tokio, Words};
use crate::allocator;
use crate::report::{Settings, print_value};

pub(crate) fn run(settings: &Settings) {
    for (kind, capacity) in [("bounded", Some(1024)), ("unbounded", None)] {
        bytes::<Postbox>(settings, kind, capacity);
        bytes::<Crossbeam>(settings, kind, capacity);
        bytes::<Flume>(settings, kind, capacity);
        bytes::<Kanal>(settings, kind, capacity);
        bytes::<AsyncChan>(settings, kind, capacity);
        bytes::<Tokio>(settings, kind, capacity);
        bytes::<Std>(settings, kind, capacity);
        bytes::<Thingbuf>(settings, kind, capacity);
    }
}

fn bytes<T: Channel>(settings: &Settings, kind: &str, capacity: Option<usize>) {
    let scenario = format!("empty-bytes/{kind}");
    if !settings.includes(&scenario) {
        return;
    }
    let count = 100;
    let (channels, bytes) =
        allocator::bytes_of(|| (0..count).map_while(|_| T::open::<Words<1>>(capacity)).collect::<Vec<_>>());
    if channels.is_empty() {
        return;
    }
    // The handles are stored in the vector, so its allocation is part of the count.
    print_value(settings, SUITE, &scenario, T::NAME, "bytes", bytes / count);
}
