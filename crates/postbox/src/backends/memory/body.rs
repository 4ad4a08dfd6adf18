//! The body of a message in memory.

use std::num::NonZeroU8;

use bytes::{Bytes, BytesMut};

use crate::mailbox::codec::Small;

/// A body as it is stored. A short one that comes from another thread lies in its place, without memory of its own, and each
/// delivery gets a copy: memory that one thread allocates and another frees costs both of them more than that.
#[derive(Clone, Debug)]
pub(super) enum Body {
    InPlace(Short),
    Shared(Bytes),
}

/// Bodies of up to so many bytes are copied.
const SHORT: usize = 64;

/// A body in its place. It begins where a word does: copies of odd bytes stall the processor.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub(super) struct Short {
    bytes: [u8; SHORT],
    /// Never 0, which tells the other kind of body, so that the kind takes no room.
    length: NonZeroU8,
}

const _: () = assert!(size_of::<Body>() == SHORT + 8);

impl Short {
    #[inline(always)]
    pub(super) fn to_bytes(&self) -> Bytes {
        Small::first(usize::from(self.length.get()), self.bytes)
    }
}

/// So many short bodies share one piece of memory at the most: who keeps one of them keeps that.
const SHELF: usize = 16;

/// Memory for the short bodies of one receive. One piece for many: the allocator keeps fewer at hand than a batch needs.
pub(super) struct Shelf {
    room: BytesMut,
    /// For how many there is no room yet, at the most.
    left: usize,
}

impl Shelf {
    pub(super) fn for_up_to(many: usize) -> Self {
        Shelf { room: BytesMut::new(), left: many }
    }

    #[inline(always)]
    pub(super) fn put(&mut self, body: &Short) -> Bytes {
        if self.room.capacity() < SHORT {
            if self.left < 2 {
                return body.to_bytes();
            }
            self.grow();
        }
        self.room.extend_from_slice(&body.bytes);
        let mut body_alone = self.room.split();
        body_alone.truncate(usize::from(body.length.get()));
        body_alone.freeze()
    }

    /// A delivery needs no room here.
    #[inline(always)]
    pub(super) fn pass(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    #[cold]
    fn grow(&mut self) {
        let many = self.left.min(SHELF);
        self.left -= many;
        self.room = BytesMut::with_capacity(many * SHORT);
    }
}

impl Body {
    /// Leaves a short body where it is: its owner drops it, outside of the lock.
    #[inline(always)]
    pub(super) fn carried(body: &mut Bytes) -> Self {
        let many = body.len();
        match NonZeroU8::new(many as u8) {
            Some(length) if many <= SHORT => {
                let mut bytes = [0; SHORT];
                bytes[..many].copy_from_slice(body);
                Body::InPlace(Short { bytes, length })
            }
            None if many == 0 => Body::default(),
            _ => Body::Shared(std::mem::take(body)),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Body::InPlace(body) => &body.bytes[..usize::from(body.length.get())],
            Body::Shared(body) => body,
        }
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        match self {
            Body::InPlace(body) => body.to_bytes(),
            Body::Shared(body) => body.clone(),
        }
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Default for Body {
    fn default() -> Self {
        Body::Shared(Bytes::new())
    }
}
