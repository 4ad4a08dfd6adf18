//! Rounds, medians, ratios, and the two ways to print them.

use std::io::Write;
use std::time::Duration;

/// The system that is ours.
pub(crate) const POSTBOX: &str = "postbox";

/// What to run and how to print it.
#[derive(Clone)]
pub(crate) struct Settings {
    /// One JSON line per measurement instead of a table.
    pub(crate) json: bool,
    /// Fewer messages and rounds: shows that all works, not how fast.
    pub(crate) quick: bool,
    /// How many rounds there are at most, after the one that does not count.
    pub(crate) most_rounds: usize,
    /// Only scenarios whose name contains this.
    pub(crate) only: Option<String>,
    /// Only these systems, if any are named.
    pub(crate) systems: Vec<String>,
    /// Peers that have to be built or installed first.
    pub(crate) peers: Vec<String>,
}

impl Settings {
    /// Whether a scenario is to be run.
    pub(crate) fn includes(&self, scenario: &str) -> bool {
        self.only.as_ref().is_none_or(|only| scenario.contains(only.as_str()))
    }

    /// At least seven rounds count.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 3 } else { self.most_rounds }
    }

    /// A number of operations, scaled down for a quick run, but if possible enough for 64 tasks with batches of 10.
    pub(crate) fn scale(&self, operations: usize) -> usize {
        if self.quick { (operations / 20).max(1280).min(operations) } else { operations }
    }
}

/// One system in one scenario: runs a given number of operations and tells how long they took.
pub(crate) struct Contender<'a> {
    /// The name in the report.
    pub(crate) system: &'static str,
    /// Runs once.
    pub(crate) run: Box<dyn FnMut(usize) -> Duration + 'a>,
}

impl<'a> Contender<'a> {
    /// A contender by its name.
    pub(crate) fn new(system: &'static str, run: impl FnMut(usize) -> Duration + 'a) -> Self {
        Contender { system, run: Box::new(run) }
    }
}

/// What operations cost beside time: something that only grows, read before and after.
pub(crate) struct Meter<'a> {
    unit: &'static str,
    read: Box<dyn Fn() -> f64 + 'a>,
    operations: f64,
}

impl<'a> Meter<'a> {
    /// What one operation costs, by its name in the report.
    pub(crate) fn new(unit: &'static str, read: impl Fn() -> f64 + 'a) -> Self {
        Meter { unit, read: Box::new(read), operations: 1.0 }
    }

    /// What a thousand operations cost.
    pub(crate) fn per_thousand(self) -> Self {
        Meter { operations: 1_000.0, ..self }
    }
}

/// Runs all contenders in turn, round by round, and prints a line for each.
pub(crate) fn measure(
    settings: &Settings,
    suite: &str,
    scenario: &str,
    operations: usize,
    contenders: Vec<Contender<'_>>,
) {
    measure_with(settings, suite, scenario, operations, contenders, &[]);
}

/// The same, with meters beside the clock.
pub(crate) fn measure_with(
    settings: &Settings,
    suite: &str,
    scenario: &str,
    operations: usize,
    mut contenders: Vec<Contender<'_>>,
    meters: &[Meter<'_>],
) {
    if !settings.includes(scenario) {
        return;
    }
    contenders.retain(|contender| {
        settings.systems.is_empty() || settings.systems.iter().any(|system| system == contender.system)
    });
    let operations = settings.scale(operations);
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    let mut costs: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); meters.len()]; contenders.len()];
    // A round that does not count warms up allocators, caches and branch predictors.
    for round in 0..=settings.rounds() {
        for place in 0..contenders.len() {
            // Nobody always runs after the same one.
            let index = (place + round) % contenders.len();
            let before: Vec<f64> = meters.iter().map(|meter| (meter.read)()).collect();
            let took = (contenders[index].run)(operations);
            if round > 0 {
                rates[index].push(operations as f64 / took.as_secs_f64());
                for ((meter, costs), before) in meters.iter().zip(&mut costs[index]).zip(before) {
                    costs.push(((meter.read)() - before) / operations as f64 * meter.operations);
                }
            }
        }
    }
    // Limits and what promises less are there to look at.
    let is_peer = |system: &str| ![POSTBOX, "limit-", "unsynced-"].iter().any(|prefix| system.starts_with(prefix));
    let best_peer = (0..contenders.len())
        .filter(|&index| is_peer(contenders[index].system))
        .max_by(|&a, &b| median(&rates[a]).total_cmp(&median(&rates[b])));
    for (index, contender) in contenders.iter().enumerate() {
        let ours = contender.system.starts_with(POSTBOX);
        // The ratio of each round, then the median: noise of a round hits both sides alike.
        let ratio = best_peer
            .filter(|_| ours)
            .map(|best| Ratio::new(rates[index].iter().zip(&rates[best]).map(|(own, peer)| own / peer).collect()));
        let best_name = best_peer.map(|best| contenders[best].system);
        let costs: Vec<_> =
            meters.iter().zip(&costs[index]).map(|(meter, costs)| (meter.unit, median(costs))).collect();
        print(settings, suite, scenario, contender.system, &rates[index], &costs, ratio, best_name);
    }
}

#[allow(clippy::too_many_arguments)]
fn print(
    settings: &Settings,
    suite: &str,
    scenario: &str,
    system: &str,
    rates: &[f64],
    costs: &[(&str, f64)],
    ratio: Option<Ratio>,
    best: Option<&str>,
) {
    let (mid, min, max) =
        (median(rates), rates.iter().copied().fold(f64::MAX, f64::min), rates.iter().copied().fold(0.0, f64::max));
    let mut out = std::io::stdout().lock();
    let written = if settings.json {
        let costs: String = costs.iter().map(|(unit, cost)| format!(",\"{unit}\":{cost:.2}")).collect();
        let ratio = ratio.map_or(String::new(), |Ratio { mid, low, high }| {
            format!(",\"ratio_to_best_peer\":{mid:.3},\"ratio_low\":{low:.3},\"ratio_high\":{high:.3}")
        });
        writeln!(
            out,
            "{{\"suite\":\"{suite}\",\"scenario\":\"{scenario}\",\"system\":\"{system}\",\"ops_per_s\":{mid:.0},\"min\":{min:.0},\"max\":{max:.0}{costs}{ratio}}}"
        )
    } else {
        let costs: String = costs.iter().map(|(unit, cost)| format!("  {cost:.1} {unit}")).collect();
        let ratio = ratio.map_or(String::new(), |Ratio { mid, low, high }| {
            format!("  {mid:.2} x {} [{low:.2} .. {high:.2}]", best.unwrap_or("-"))
        });
        writeln!(
            out,
            "{scenario:<46} {system:<18} {:>9.1} ns  {:>12.0}/s  [{:.1} .. {:.1}]{costs}{ratio}",
            1e9 / mid,
            mid,
            1e9 / max,
            1e9 / min
        )
    };
    end_if_closed(written);
}

/// Prints a single number with its unit.
pub(crate) fn print_value(settings: &Settings, suite: &str, scenario: &str, system: &str, unit: &str, value: usize) {
    let mut out = std::io::stdout().lock();
    end_if_closed(if settings.json {
        writeln!(
            out,
            "{{\"suite\":\"{suite}\",\"scenario\":\"{scenario}\",\"system\":\"{system}\",\"{unit}\":{value}}}"
        )
    } else {
        writeln!(out, "{scenario:<46} {system:<18} {value:>9} {unit}")
    });
}

/// A closed pipe (`| head`) ends the run.
fn end_if_closed(written: std::io::Result<()>) {
    if written.is_err() {
        std::process::exit(0);
    }
}

/// How many times as fast as a peer: the median of the rounds, and between what it lies, in 19 of 20 such runs.
struct Ratio {
    mid: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    fn new(mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        let outside = outside(rounds.len());
        Ratio { mid: median(&rounds), low: rounds[outside], high: rounds[rounds.len() - 1 - outside] }
    }
}

/// How many of the sorted rounds can be left out at each end so that the true median is among the others in 19 of 20 runs: each
/// round is above it or below it by the toss of a coin. With fewer than six rounds even all of them are not enough, and none is left out.
fn outside(rounds: usize) -> usize {
    let (mut ways, mut tail) = (1.0, 0.0);
    let all = 2f64.powi(rounds as i32);
    for left_out in 0..rounds {
        tail += ways / all;
        if tail > 0.025 {
            return left_out.saturating_sub(1);
        }
        ways *= (rounds - left_out) as f64 / (left_out + 1) as f64;
    }
    0
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_is_as_in_the_tables() {
        // Of sorted rounds, the first and the last that are in the interval, counted from 1.
        for (rounds, first, last) in [(3, 1, 3), (5, 1, 5), (6, 1, 6), (7, 1, 7), (9, 2, 8), (21, 6, 16), (31, 10, 22)]
        {
            assert_eq!((outside(rounds) + 1, rounds - outside(rounds)), (first, last), "{rounds} rounds");
        }
    }
}
