//! `cargo run --release -p postbox-bench -- SUITE [--json] [--quick] [--only TEXT] [--system NAME] [--peers NAME]`
//!
//! Compares Postbox with other libraries. Each system runs once in each round, so that noise affects all systems equally.

mod allocator;
mod chart;
mod core;
mod memory;
mod peer_process;
mod redis;
mod report;
mod sqlite;
mod sqs;

use report::Settings;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

const USAGE: &str = "usage: postbox-bench SUITE [--json] [--quick] [--only TEXT] [--system NAME] [--peers NAME]
       postbox-bench chart [--only TEXT] < RESULTS.jsonl > CHART.svg
suites: core, memory, sqlite, redis, sqs
  --json       one JSON line per measurement
  --quick      fewer messages and rounds: shows that all scenarios run, not how fast
  --only TEXT  only the scenarios whose name contains TEXT
  --system NAME
               only that system; can be repeated
  --peers NAME also run a peer that must be built or installed first, in the target folder; can be repeated;
               suite sqlite: apalis, or python (litequeue and persist-queue); suite sqs: omniqueue";

fn main() {
    let mut settings =
        Settings { json: false, quick: false, max_rounds: 21, only: None, systems: Vec::new(), peers: Vec::new() };
    let mut suites = Vec::new();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first().map(|(role, rest)| (role.as_str(), rest)) {
        Some((sqlite::ROLE, rest)) => return sqlite::process(rest),
        Some((redis::ROLE, rest)) => return redis::process(rest),
        Some(("chart", rest)) => return draw_chart(rest),
        _ => {}
    }
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => settings.json = true,
            "--quick" => settings.quick = true,
            "--only" => settings.only = Some(arguments.next().unwrap_or_else(|| fail("--only needs a text"))),
            "--system" => settings.systems.push(arguments.next().unwrap_or_else(|| fail("--system needs a name"))),
            "--peers" => match arguments.next() {
                Some(peer) if sqlite::PEERS.contains(&peer.as_str()) || peer == sqs::PEER => settings.peers.push(peer),
                _ => fail(&format!("--peers needs one of {}, {}", sqlite::PEERS.join(", "), sqs::PEER)),
            },
            "--help" | "-h" => return println!("{USAGE}"),
            "core" => suites.push(core::run as fn(&Settings)),
            "memory" => suites.push(memory::run),
            "redis" => suites.push(redis::run),
            "sqlite" => suites.push(sqlite::run),
            "sqs" => suites.push(sqs::run),
            other => fail(&format!("unknown suite or option '{other}'")),
        }
    }
    if suites.is_empty() {
        fail("no suite given");
    }
    for suite in suites {
        suite(&settings);
    }
}

/// Reads the JSON lines of one suite, and prints their chart.
fn draw_chart(arguments: &[String]) {
    let only = match arguments {
        [] => "",
        [option, only] if option == "--only" => only,
        _ => fail("chart takes --only TEXT alone, and reads the output of a suite with --json"),
    };
    let lines = std::io::read_to_string(std::io::stdin()).unwrap_or_else(|error| fail(&format!("stdin: {error}")));
    match chart::draw(&lines, only) {
        Ok(svg) => print!("{svg}"),
        Err(error) => fail(&error),
    }
}

fn fail(message: &str) -> ! {
    eprintln!("postbox-bench: {message}\n{USAGE}");
    std::process::exit(2);
}
