//! Draws a chart of results: an SVG file from the JSON lines of one suite.
//!
//! Each scenario has a bar for Postbox, for its best peers and for the limits. The longest bar of a scenario is the
//! fastest system, and the bars of different scenarios cannot be compared. Systems that promise less (`unsynced-…`) are
//! left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use crate::report::POSTBOX;

const WIDTH: usize = 760;
const LABELS: usize = 200;
const BARS: usize = 300;
const BAR: usize = 16;
const GAP: usize = 4;
const TITLE: usize = 26;

/// How many peers a scenario shows.
const PEERS: usize = 3;

/// One line of a suite's output.
#[derive(Clone, Deserialize)]
struct Measurement {
    suite: String,
    scenario: String,
    system: String,
    /// Absent in lines with a single number, such as bytes.
    ops_per_s: Option<f64>,
    /// What an operation costs beside time, by unit.
    #[serde(flatten)]
    costs: BTreeMap<String, serde_json::Value>,
}

impl Measurement {
    fn is_limit(&self) -> bool {
        self.system.starts_with("limit-")
    }

    fn is_peer(&self) -> bool {
        !self.system.starts_with(POSTBOX) && !self.is_limit()
    }

    fn rate(&self) -> f64 {
        self.ops_per_s.unwrap_or_default()
    }

    fn colour(&self) -> &'static str {
        match (self.system.starts_with(POSTBOX), self.is_limit()) {
            (true, _) => "ours",
            (_, true) => "limit",
            _ => "peer",
        }
    }

    /// The rate, and the cost that the suite is about.
    fn text(&self) -> String {
        let rate = match self.rate() {
            rate if rate >= 1e6 => format!("{:.1} million/s", rate / 1e6),
            rate => format!("{}/s", grouped(rate as u64)),
        };
        let cost = |unit: &str| self.costs.get(unit).and_then(serde_json::Value::as_f64);
        match (cost("requests"), cost("server_cpu_us")) {
            (Some(requests), _) => format!("{rate}, {requests:.0} requests per 1 000"),
            (_, Some(server)) => format!("{rate}, {server:.1} µs of the server"),
            _ => rate,
        }
    }
}

/// A number with a space between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// The chart of the scenarios whose name contains `only`, in the order of the lines.
pub(crate) fn draw(lines: &str, only: &str) -> Result<String, String> {
    let mut scenarios: Vec<Vec<Measurement>> = Vec::new();
    for (number, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let measurement: Measurement =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))?;
        let promises_less = measurement.system.starts_with("unsynced-");
        if measurement.ops_per_s.is_none() || promises_less || !measurement.scenario.contains(only) {
            continue;
        }
        match scenarios.iter_mut().find(|scenario| scenario[0].scenario == measurement.scenario) {
            Some(scenario) => scenario.push(measurement),
            None => scenarios.push(vec![measurement]),
        }
    }
    let Some(suite) = scenarios.first().map(|scenario| scenario[0].suite.clone()) else {
        return Err("there is no rate to draw: give the output of a suite with --json".to_owned());
    };
    scenarios.iter_mut().for_each(keep_the_best);
    let rows: usize = scenarios.iter().map(Vec::len).sum();
    let height = rows * (BAR + GAP) + scenarios.len() * (TITLE + GAP) + GAP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" role=\"img\" \
         aria-label=\"Results of the suite {suite}\">\n\
         <style>\n\
         text {{ font: 12px system-ui, sans-serif; fill: #1f2937 }}\n\
         .title {{ font-weight: 600 }}\n\
         .ours {{ fill: #2563eb }}\n\
         .peer {{ fill: #94a3b8 }}\n\
         .limit {{ fill: #e2e8f0; stroke: #94a3b8 }}\n\
         .ground {{ fill: #ffffff }}\n\
         @media (prefers-color-scheme: dark) {{\n\
         text {{ fill: #e5e7eb }} .ground {{ fill: #111827 }} .ours {{ fill: #60a5fa }} .peer {{ fill: #64748b }} \
         .limit {{ fill: #1f2937 }}\n\
         }}\n\
         </style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n"
    );
    let mut y = GAP;
    for scenario in &scenarios {
        let baseline = y + TITLE - 8;
        writeln!(svg, "<text class=\"title\" x=\"8\" y=\"{baseline}\">{}</text>", escaped(&scenario[0].scenario))
            .expect("a string takes all");
        y += TITLE;
        let fastest = scenario.iter().map(Measurement::rate).fold(0.0, f64::max);
        for measurement in scenario {
            let length = ((measurement.rate() / fastest) * BARS as f64).round().max(1.0);
            let (label, text, colour) = (escaped(&measurement.system), measurement.text(), measurement.colour());
            let baseline = y + BAR - 4;
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{baseline}\" text-anchor=\"end\">{label}</text>\
                 <rect class=\"{colour}\" x=\"{LABELS}\" y=\"{y}\" width=\"{length}\" height=\"{BAR}\"/>\
                 <text x=\"{}\" y=\"{baseline}\">{text}</text>",
                LABELS - 8,
                LABELS as f64 + length + 6.0,
            )
            .expect("a string takes all");
            y += BAR + GAP;
        }
        y += GAP;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Postbox first, then its best peers, then the limits: each from fast to slow.
fn keep_the_best(scenario: &mut Vec<Measurement>) {
    scenario.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
    let mut peers = 0;
    scenario.retain(|measurement| {
        peers += usize::from(measurement.is_peer());
        !measurement.is_peer() || peers <= PEERS
    });
    scenario.sort_by_key(|measurement| (measurement.is_limit(), measurement.is_peer()));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"
        {"suite":"redis","scenario":"tasks-64","system":"limit-script","ops_per_s":90000,"min":1,"max":2}
        {"suite":"redis","scenario":"tasks-64","system":"slow","ops_per_s":10,"min":1,"max":2}
        {"suite":"redis","scenario":"tasks-64","system":"a<b","ops_per_s":30000,"min":1,"max":2,"server_cpu_us":34.9}
        {"suite":"redis","scenario":"tasks-64","system":"postbox","ops_per_s":61501,"min":1,"max":2,"server_cpu_us":10.7}
        {"suite":"redis","scenario":"tasks-64","system":"fair","ops_per_s":20000,"min":1,"max":2}
        {"suite":"redis","scenario":"tasks-64","system":"good","ops_per_s":25000,"min":1,"max":2}
        {"suite":"redis","scenario":"tasks-64","system":"unsynced-file","ops_per_s":900000,"min":1,"max":2}
        {"suite":"redis","scenario":"connections","system":"postbox","connections":2}
        {"suite":"redis","scenario":"one-task","system":"postbox","ops_per_s":1234567,"min":1,"max":2}
    "#;

    #[test]
    fn a_scenario_has_a_bar_for_postbox_its_best_peers_and_the_limits() {
        let svg = draw(LINES, "").unwrap();
        let order: Vec<_> =
            ["tasks-64", "61 501/s, 10.7 µs of the server", "a&lt;b", ">good<", ">fair<", "limit-script"]
                .iter()
                .map(|text| svg.find(text).unwrap_or_else(|| panic!("{text} is missing in {svg}")))
                .collect();
        assert!(order.is_sorted(), "{order:?}");
        assert!(!svg.contains(">slow<") && !svg.contains("connections") && !svg.contains("unsynced"));
        assert!(svg.contains("1.2 million/s"));
        // The longest bar is that of the fastest system.
        assert!(svg.contains("class=\"limit\" x=\"200\" y=\"110\" width=\"300\""), "{svg}");
    }

    #[test]
    fn what_cannot_be_drawn_is_an_error() {
        assert!(draw("", "").unwrap_err().contains("--json"));
        assert!(draw(LINES, "no such scenario").is_err());
        assert!(draw("not JSON", "").unwrap_err().starts_with("line 1: "));
    }
}
