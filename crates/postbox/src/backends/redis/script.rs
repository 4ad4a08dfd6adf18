//! The Lua scripts, one per verb. The server knows each by its hash.

use std::sync::LazyLock;

use redis::{Arg, Cmd};

/// The clock of the scripts.
#[derive(Clone, Copy)]
pub(super) enum Time {
    /// The server's clock.
    Server,
    /// A key that tests set.
    #[cfg(feature = "testing")]
    Key,
}

/// The first file of a script, by [`Time`].
const CLOCKS: &[&str] = &[
    include_str!("lua/time.lua"),
    #[cfg(feature = "testing")]
    include_str!("lua/test_time.lua"),
];

/// One source for each clock.
pub(super) struct Script(Vec<Source>);

struct Source {
    text: String,
    hash: String,
}

impl Script {
    fn new(files: &[&str]) -> Self {
        let source = |clock: &&str| {
            let text = format!("{clock}\n{}", files.join("\n"));
            let hash = redis::Script::new(&text).get_hash().to_string();
            Source { text, hash }
        };
        Script(CLOCKS.iter().map(source).collect())
    }

    pub(super) fn call(
        &'static self,
        time: Time,
        keys: &[impl AsRef<str>],
        arguments: &[impl AsRef<[u8]>],
    ) -> ScriptCall {
        let source = &self.0[time as usize];
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

/// A call of a script with its keys and arguments.
pub(super) struct ScriptCall {
    source: &'static Source,
    command: Cmd,
    key: String,
}

impl ScriptCall {
    /// The call by the hash of the script.
    pub(super) fn command(&self) -> &Cmd {
        &self.command
    }

    /// The first key. All keys of a call are in one slot.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.command.args_iter().filter_map(|argument| match argument {
            Arg::Simple(bytes) => Some(bytes),
            _ => None,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.arguments().map(<[u8]>::len).sum()
    }

    /// The call with the text of the script, for a server that does not know the hash.
    pub(super) fn with_source(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.source.text);
        for argument in self.arguments().skip(2) {
            command.arg(argument);
        }
        command
    }
}

/// A script is these files of `lua/`, one after the other, with `time.lua` or `test_time.lua`
/// before them.
macro_rules! scripts {
    ($($name:ident: $($file:literal)+;)+) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(&[$(include_str!(concat!("lua/", $file, ".lua"))),+]));)+
    };
}

scripts! {
    // A plain part returns if it can complete the request. So it does not pay for the functions of
    // `transitions`.
    SEND: "head" "send_plain" "transitions" "send";
    RECEIVE: "head" "receive_plain" "transitions" "receive";
    SETTLE: "head" "settle_plain" "transitions" "settle";
    COUNTS: "head" "transitions" "counts";
    CREATE: "head" "create";
    DELETE: "head" "delete";
    PURGE: "head" "transitions" "purge";
    CANCEL: "head" "transitions" "cancel";
    PEEK: "head" "transitions" "peek";
    DEAD_LETTERS: "head" "transitions" "dead_letters";
    REDRIVE: "head" "transitions" "redrive";
    PURGE_DEAD_LETTERS: "head" "transitions" "purge_dead_letters";
    REPLY_CREATE: "reply_head" "reply_create";
    REPLY_RESOLVE: "reply_head" "reply_resolve";
    REPLY_CANCEL: "reply_head" "reply_cancel";
    REPLY_GET: "reply_head" "reply_get";
    REPLY_DELETE: "reply_head" "reply_delete";
    REPLY_EXPIRED: "reply_head" "reply_expired";
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_reason_of_spent_deliveries_is_that_of_all_backends() {
        assert!(include_str!("lua/transitions.lua").contains(&format!("'{}'", postbox_core::DELIVERIES_SPENT)));
    }
}
