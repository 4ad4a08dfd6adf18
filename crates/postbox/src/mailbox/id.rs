//! Identifiers: of a message, of a reply, of a delivery.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use rand::RngExt as _;
use rand::rngs::SmallRng;
use uuid::Uuid;

/// Either a UUID, which costs no allocation, or whatever text a server or another program made.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    // As words: copies of odd bytes stall the processor.
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
    /// A text that is the canonical form of a UUID is that UUID, so that equal texts are equal identifiers.
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

/// A new UUID: 122 random bits, not to be guessed. Whoever knows a reply's can take it.
pub(crate) fn new_uuid() -> Uuid {
    uuid::Builder::from_random_bytes(rand::rng().random::<u128>().to_ne_bytes()).into_uuid()
}

thread_local! {
    /// Seeded once per thread by the system. Quick, and unique; not a secret.
    static QUICK: RefCell<SmallRng> = RefCell::new(rand::make_rng());
}

impl MessageId {
    /// A new one.
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
            /// The identifier as a number, if it is a UUID.
            pub fn as_u128(&self) -> Option<u128> {
                match &self.0 {
                    Repr::Uuid(words) => Some(number(*words)),
                    Repr::Text(_) => None,
                }
            }

            /// The identifier with this number.
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
    /// Names a message, from `send` to every delivery of it. Made by the sender, unique.
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
    /// Names a reply that is awaited. Whoever knows it can wait for the reply, in any process.
    ///
    /// ```
    /// let id = postbox::ReplyId::from("0190a6e0-0000-7000-8000-000000000001");
    /// assert_eq!(id, "0190a6e0-0000-7000-8000-000000000001");
    /// ```
    ReplyId
}

identifier! {
    /// Proof of one delivery of a message. Opaque, another one for each delivery.
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
    /// A new one.
    pub fn new() -> Self {
        new_uuid().into()
    }
}

impl Default for ReplyId {
    fn default() -> Self {
        Self::new()
    }
}
