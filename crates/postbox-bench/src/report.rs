//! Runs scenarios in rounds, computes medians and ratios, and prints them as a table or as JSON lines.

use std::io::Write;
use std::time::Duration;

/// The name of this project's system in results.
pub(crate) const POSTBOX: &str = "postbox";

/// What to run and how to print it.
#[derive(Clone)]
pub(crate) struct Settings {
    /// One JSON line per measurement instead of a table.
    pub(crate) json: bool,
    /// Run fewer messages and rounds, to check that all scenarios work.
    pub(crate) quick: bool,
    /// Maximum number of rounds, without the warm-up round.
    pub(crate) max_rounds: usize,
    /// Run only scenarios whose name contains this text.
    pub(crate) only: Option<String>,
    /// Run only these systems, or all if this is empty.
    pub(crate) systems: Vec<String>,
    /// Additional peers to run, which must be built or installed first.
    pub(crate) peers: Vec<String>,
}

impl Settings {
    /// Whether to run a scenario.
    pub(crate) fn includes(&self, scenario: &str) -> bool {
        self.only.as_ref().is_none_or(|only| scenario.contains(only.as_str()))
    }

    /// Number of rounds, without the warm-up round.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 3 } else { self.max_rounds }
    }

    /// Scales a number of operations down for a quick run. The result is enough for 64 tasks with batches of 10, unless
    /// `operations` itself is less.
    pub(crate) fn scale(&self, operations: usize) -> usize {
        if self.quick { (operations / 20).max(1280).min(operations) } else { operations }
    }
}

/// One system in one scenario. It runs a number of operations and returns the elapsed time.
pub(crate) struct Contender<'a> {
    /// The name in the report.
    pub(crate) system: &'static str,
    /// Runs a number of operations.
    pub(crate) run: Box<dyn FnMut(usize) -> Duration + 'a>,
}

impl<'a> Contender<'a> {
    /// Creates a contender.
    pub(crate) fn new(system: &'static str, run: impl FnMut(usize) -> Duration + 'a) -> Self {
        Contender { system, run: Box::new(run) }
    }
}

/// A cost of operations other than time: a counter that is read before and after each run.
pub(crate) struct Meter<'a> {
    unit: &'static str,
    read: Box<dyn Fn() -> f64 + 'a>,
    operations: f64,
}

impl<'a> Meter<'a> {
    /// Creates a meter of the cost of one operation. `unit` is its name in the report.
    pub(crate) fn new(unit: &'static str, read: impl Fn() -> f64 + 'a) -> Self {
        Meter { unit, read: Box::new(read), operations: 1.0 }
    }

    /// Reports the cost of a thousand operations instead.
    pub(crate) fn per_thousand(self) -> Self {
        Meter { operations: 1_000.0, ..self }
    }
}

/// Runs each contender once in each round, and prints a line for each.
pub(crate) fn measure(
    settings: &Settings,
    suite: &str,
    scenario: &str,
    operations: usize,
    contenders: Vec<Contender<'_>>,
) {
    measure_with(settings, suite, scenario, operations, contenders, &[]);
}

/// Like [`measure`], with meters.
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
    // Round 0 warms up allocators, caches and branch predictors, and is not counted.
    for round in 0..=settings.rounds() {
        for position in 0..contenders.len() {
            // A different contender starts each round.
            let index = (position + round) % contenders.len();
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
    // Theoretical limits, and modes with weaker guarantees, are not compared with Postbox.
    let is_peer = |system: &str| ![POSTBOX, "limit-", "unsynced-"].iter().any(|prefix| system.starts_with(prefix));
    let best_peer = (0..contenders.len())
        .filter(|&index| is_peer(contenders[index].system))
        .max_by(|&a, &b| median(&rates[a]).total_cmp(&median(&rates[b])));
    for (index, contender) in contenders.iter().enumerate() {
        // Ratios are computed for each round, since the noise of a round affects both systems equally.
        let ratio = best_peer
            .filter(|_| contender.system.starts_with(POSTBOX))
            .map(|best| Ratio::new(rates[index].iter().zip(&rates[best]).map(|(rate, peer)| rate / peer).collect()));
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

/// Exits if the reader of standard output has closed it, as `head` does.
fn end_if_closed(written: std::io::Result<()>) {
    if written.is_err() {
        std::process::exit(0);
    }
}

/// Speed in relation to a peer: the median of the rounds, and its 95 % confidence interval.
struct Ratio {
    mid: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    fn new(mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        let margin = interval_margin(rounds.len());
        Ratio { mid: median(&rounds), low: rounds[margin], high: rounds[rounds.len() - 1 - margin] }
    }
}

/// The number of sorted rounds to leave out at each end, so that the others span the 95 % confidence interval of the median.
/// The number of rounds below the true median has a binomial distribution with probability 1/2. Fewer than six rounds are
/// too few for 95 %: then none is left out.
fn interval_margin(rounds: usize) -> usize {
    let (mut combinations, mut tail) = (1.0, 0.0);
    let all = 2f64.powi(rounds as i32);
    for left_out in 0..rounds {
        tail += combinations / all;
        if tail > 0.025 {
            return left_out.saturating_sub(1);
        }
        combinations *= (rounds - left_out) as f64 / (left_out + 1) as f64;
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
    fn the_interval_of_a_median_equals_the_published_tables() {
        // The numbers of the first and the last sorted round in the interval, counted from 1.
        for (rounds, first, last) in [(3, 1, 3), (5, 1, 5), (6, 1, 6), (7, 1, 7), (9, 2, 8), (21, 6, 16), (31, 10, 22)]
        {
            let margin = interval_margin(rounds);
            assert_eq!((margin + 1, rounds - margin), (first, last), "{rounds} rounds");
        }
    }
}
