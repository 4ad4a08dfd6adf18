//! The scripts, one per verb, each with its hash: the server knows them by it.

use std::sync::LazyLock;

use redis::Cmd;

/// Where scripts have the time from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Time {
    /// The server's clock.
    #[default]
    Server,
    /// A key that tests move.
    #[cfg(feature = "testing")]
    Key,
}

pub(super) struct Script {
    by_server: Source,
    #[cfg(feature = "testing")]
    by_key: Source,
}

struct Source {
    text: String,
    hash: String,
}

impl Source {
    fn new(time: &str, script: &str) -> Self {
        let text = format!("{time}{script}");
        let hash = redis::Script::new(&text).get_hash().to_string();
        Source { text, hash }
    }
}

impl Script {
    fn new(script: &str) -> Self {
        Script {
            by_server: Source::new(include_str!("lua/time.lua"), script),
            #[cfg(feature = "testing")]
            by_key: Source::new(include_str!("lua/test_time.lua"), script),
        }
    }

    /// The call with keys and arguments.
    pub(super) fn call(
        &'static self,
        time: Time,
        keys: &[impl AsRef<str>],
        arguments: &[impl AsRef<[u8]>],
    ) -> ScriptCall {
        let source = match time {
            Time::Server => &self.by_server,
            #[cfg(feature = "testing")]
            Time::Key => &self.by_key,
        };
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&source.hash).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        for argument in arguments {
            command.arg(argument.as_ref());
        }
        ScriptCall { source, command, key: keys[0].as_ref().into() }
    }
}

/// A call of a script by its hash.
pub(super) struct ScriptCall {
    source: &'static Source,
    pub(super) command: Cmd,
    /// The first of its keys: all are in its slot.
    pub(super) key: String,
}

impl ScriptCall {
    /// How many bytes its arguments have.
    pub(super) fn size(&self) -> usize {
        let of = |argument: redis::Arg<&[u8]>| if let redis::Arg::Simple(bytes) = argument { bytes.len() } else { 0 };
        self.command.args_iter().map(of).sum()
    }

    /// The same with the source, for a server that does not know it yet.
    pub(super) fn with_source(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.source.text);
        for argument in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

/// What verbs share, by the name under which they ask for it.
const PARTS: [(&str, &str); 4] = [
    ("--@take", include_str!("lua/take.lua")),
    ("--@store", include_str!("lua/store.lua")),
    ("--@acknowledge", include_str!("lua/acknowledge.lua")),
    ("--@messages", include_str!("lua/transitions.lua")),
];

/// The verb's own file after the common head; what it shares with others where it asks for it.
fn verb(name: &str, own: &str) -> Script {
    let own = PARTS.iter().fold(own.to_string(), |own, (mark, part)| own.replace(mark, part));
    let own = own.replace("@SPENT@", postbox_core::DELIVERIES_SPENT);
    Script::new(&format!("local VERB = '{name}'\n{}\n{own}", include_str!("lua/head.lua")))
}

fn reply_verb(_: &str, own: &str) -> Script {
    Script::new(&format!("{}\n{own}", include_str!("lua/reply_head.lua")))
}

macro_rules! scripts {
    ($($maker:ident: $($name:ident $file:literal)+;)+) => {
        $($(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| $maker($file, include_str!(concat!("lua/", $file, ".lua"))));)+)+
    };
}

scripts! {
    verb: SEND "send" RECEIVE "receive" SETTLE "settle" COUNTS "counts" CREATE "create" DELETE "delete" PURGE "purge"
        CANCEL "cancel" PEEK "peek" DEAD_LETTERS "dead_letters" REDRIVE "redrive" PURGE_DEAD_LETTERS "purge_dead_letters";
    reply_verb: REPLY_CREATE "reply_create" REPLY_RESOLVE "reply_resolve" REPLY_CANCEL "reply_cancel" REPLY_GET "reply_get"
        REPLY_DELETE "reply_delete" REPLY_EXPIRED "reply_expired";
}
