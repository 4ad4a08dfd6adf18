//! The scripts, one per verb, each with its hash: the server knows them by it.

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

/// The verb's own file after the common head; the common functions where it asks for them.
fn verb(own: &str) -> Script {
    let messages = include_str!("lua/messages.lua").replace("@SPENT@", postbox_core::DELIVERIES_SPENT);
    Script::new(format!("{}\n{}", include_str!("lua/head.lua"), own.replace("--@messages", &messages)))
}

fn reply_verb(own: &str) -> Script {
    Script::new(format!("{}\n{own}", include_str!("lua/reply_head.lua")))
}

macro_rules! scripts {
    ($($maker:ident: $($name:ident $file:literal)+;)+) => {
        $($(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| $maker(include_str!(concat!("lua/", $file, ".lua"))));)+)+
    };
}

scripts! {
    verb: SEND "send" RECEIVE "receive" FINISH "finish" COUNTS "counts" CREATE "create" DELETE "delete" PURGE "purge"
        CANCEL "cancel" PEEK "peek" DEAD_LETTERS "dead_letters" REDRIVE "redrive" PURGE_DEAD_LETTERS "purge_dead_letters";
    reply_verb: REPLY_CREATE "reply_create" REPLY_RESOLVE "reply_resolve" REPLY_CANCEL "reply_cancel" REPLY_GET "reply_get"
        REPLY_DELETE "reply_delete" REPLY_EXPIRED "reply_expired";
}
