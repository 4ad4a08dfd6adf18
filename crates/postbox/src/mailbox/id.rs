//! Identifiers of messages, replies and deliveries.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use rand::RngExt as _;
use rand::rngs::SmallRng;
use uuid::Uuid;

/// A UUID, which needs no allocation, or any other text of a server or of another program.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    // As words, because bytes are copied in pieces of other sizes than they were written in, which stalls the processor.
    Uuid([u64; 2]),
    Text(Arc<str>),
}

const fn words(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

const fn number([high, low]: [u64; 2]) -> u128 {
    (high as u128) << 64 | low as u128
}

impl Repr {
    /// Only the canonical form of a UUID is read as a UUID, so equal identifiers have equal texts.
    fn parse(text: &str) -> Self {
        match Uuid::try_parse(text) {
            Ok(uuid) if uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text => {
                Repr::Uuid(words(uuid.as_u128()))
            }
            _ => Repr::Text(text.into()),
        }
    }
}

impl Repr {
    fn is(&self, text: &str) -> bool {
        match self {
            Repr::Uuid(words) => {
                Uuid::from_u128(number(*words)).hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text
            }
            Repr::Text(own) => **own == *text,
        }
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Repr::Uuid(words) => {
                f.pad(Uuid::from_u128(number(*words)).hyphenated().encode_lower(&mut Uuid::encode_buffer()))
            }
            Repr::Text(text) => f.pad(text),
        }
    }
}

/// A new UUID of 122 secure random bits. The id of a reply must not be guessed, because it allows to take the reply.
pub(crate) fn new_uuid() -> Uuid {
    uuid::Builder::from_random_bytes(rand::rng().random::<u128>().to_ne_bytes()).into_uuid()
}

thread_local! {
    /// Fast and unique, but no secret. Seeded once per thread by the system.
    static QUICK: RefCell<SmallRng> = RefCell::new(rand::make_rng());
}

impl MessageId {
    /// A new, unique id.
    #[inline]
    pub fn new() -> Self {
        let [high, low] = QUICK.with_borrow_mut(|random| [random.random::<u64>(), random.random()]);
        // Version 4, variant 1: the bits that say "random".
        MessageId(Repr::Uuid([high & !0xf000 | 0x4000, low >> 2 | 1 << 63]))
    }
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Repr);

        impl $name {
            /// The id as a number, if it is a UUID.
            pub fn as_u128(&self) -> Option<u128> {
                match &self.0 {
                    Repr::Uuid(words) => Some(number(*words)),
                    Repr::Text(_) => None,
                }
            }

            /// The UUID with this number.
            pub const fn from_u128(number: u128) -> Self {
                $name(Repr::Uuid(words(number)))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(Repr::parse(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                $name(Repr::parse(&text))
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                $name(Repr::Uuid(words(uuid.as_u128())))
            }
        }

        impl From<&$name> for $name {
            fn from(id: &$name) -> Self {
                id.clone()
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::convert::Infallible;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Ok(text.into())
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0.is(other)
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0.is(other)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                Ok((&*text).into())
            }
        }
    };
}

identifier! {
    /// The id of a message. It is made by the sender, is unique, and is the same for every delivery of the message.
    ///
    /// ```
    /// use postbox::MessageId;
    ///
    /// let id = MessageId::from("0190a6e0-0000-7000-8000-000000000001");
    /// assert_eq!(id.to_string().parse(), Ok(id));
    /// ```
    MessageId
}

identifier! {
    /// The id of a reply. Any process that knows it can wait for the reply.
    ///
    /// ```
    /// let id = postbox::ReplyId::from("0190a6e0-0000-7000-8000-000000000001");
    /// assert_eq!(id, "0190a6e0-0000-7000-8000-000000000001");
    /// ```
    ReplyId
}

identifier! {
    /// The proof of one delivery of a message. It is opaque, and differs for each delivery.
    ///
    /// ```
    /// let handle = postbox::backend::ReceiptHandle::from("opaque");
    /// assert_eq!(handle.to_string(), "opaque");
    /// ```
    ReceiptHandle
}

impl Default for MessageId {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplyId {
    /// A new, unique id.
    pub fn new() -> Self {
        new_uuid().into()
    }
}

impl Default for ReplyId {
    fn default() -> Self {
        Self::new()
    }
}
