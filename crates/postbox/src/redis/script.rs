//! The scripts, one per verb and one for several of them at once, each with its hash: the server knows them by it.

use std::sync::LazyLock;

use redis::Cmd;

pub(super) struct Script {
    source: String,
    hash: String,
}

impl Script {
    fn new(source: String) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_string();
        Script { source, hash }
    }

    /// The call with keys and arguments.
    pub(super) fn call(&'static self, keys: &[impl AsRef<str>], arguments: &[impl AsRef<[u8]>]) -> ScriptCall {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.hash).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        for argument in arguments {
            command.arg(argument.as_ref());
        }
        ScriptCall { script: self, command, key: keys[0].as_ref().into() }
    }
}

/// A call of a script by its hash.
pub(super) struct ScriptCall {
    script: &'static Script,
    pub(super) command: Cmd,
    /// The first of its keys: all are in its slot.
    pub(super) key: String,
}

impl ScriptCall {
    /// The same with the source, for a server that does not know it yet.
    pub(super) fn with_source(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.script.source);
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
    ("--@messages", include_str!("lua/messages.lua")),
];

/// The verb's own file after the common head; what it shares with others where it asks for it.
fn verb(name: &str, own: &str) -> Script {
    let own = PARTS.iter().fold(own.to_string(), |own, (mark, part)| own.replace(mark, part));
    let own = own.replace("@SPENT@", postbox_core::DELIVERIES_SPENT);
    Script::new(format!("local VERB = '{name}'\n{}\n{own}", include_str!("lua/head.lua")))
}

fn reply_verb(_: &str, own: &str) -> Script {
    Script::new(format!("{}\n{own}", include_str!("lua/reply_head.lua")))
}

macro_rules! scripts {
    ($($maker:ident: $($name:ident $file:literal)+;)+) => {
        $($(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| $maker($file, include_str!(concat!("lua/", $file, ".lua"))));)+)+
    };
}

scripts! {
    verb: SEND "send" RECEIVE "receive" WAIT "wait" FINISH "finish" EXCHANGE "exchange" COUNTS "counts" CREATE "create" DELETE "delete" PURGE "purge"
        CANCEL "cancel" PEEK "peek" DEAD_LETTERS "dead_letters" REDRIVE "redrive" PURGE_DEAD_LETTERS "purge_dead_letters";
    reply_verb: REPLY_CREATE "reply_create" REPLY_RESOLVE "reply_resolve" REPLY_CANCEL "reply_cancel" REPLY_GET "reply_get"
        REPLY_DELETE "reply_delete" REPLY_EXPIRED "reply_expired";
}
