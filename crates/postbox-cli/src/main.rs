//! The `postbox` command.

mod arguments;
mod bench;
mod commands;
mod demo;
mod output;
mod process;
mod raw;
mod receive;
mod send;
mod signals;
mod transfer;
mod work;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use arguments::Arguments;
use output::Failure;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(text) => return help(&text),
    };
    let json = arguments.json;
    let result = commands::run(arguments);
    commands::wait_for_interrupt_handler();
    exit_code(result, json)
}

/// Prints help, the version, or an error in the arguments.
fn help(text: &clap::Error) -> ExitCode {
    let printed = text.print().and_then(|()| io::stdout().flush());
    match text.use_stderr() {
        true => ExitCode::from(2),
        false => exit_code(printed.map_err(Failure::from), false),
    }
}

fn exit_code(result: Result<(), Failure>, json: bool) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::failed(&failure, json);
            failure.code()
        }
    }
}
