//! The `postbox` command.

mod arguments;
mod bench;
mod commands;
mod demo;
mod output;
mod plain;
mod transfer;
mod work;

use std::process::ExitCode;

use clap::Parser as _;

use arguments::Arguments;
use output::Failure;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let json = arguments.json;
    let result = commands::run(arguments);
    commands::after_interrupt();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A reader that went away (`| head`) is no failure of ours.
            if !matches!(failure, Failure::Output) {
                output::failed(&failure, json);
            }
            failure.code()
        }
    }
}
