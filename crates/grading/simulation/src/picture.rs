//! The table of outcomes as a picture.

use std::fmt::Write as _;

use crate::StrategyOutcome;

const ROW: u64 = 22;
const LEFT: u64 = 270;
/// Pixels for a pay like that of an honest miner.
const HONEST: u64 = 260;
const WIDTH: u64 = 720;

/// The outcomes as SVG: a bar for the pay of each strategy, a stroke at its bound, and a line at the pay of an honest
/// miner.
pub fn draw(outcomes: &[StrategyOutcome]) -> String {
    let rows = u64::try_from(outcomes.len()).unwrap_or(0);
    let height = rows.saturating_mul(ROW).saturating_add(50);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"18\">pay per unit of hardware money, relative to an honest miner; stroke: the bound</text>\n"
    );
    for (at, outcome) in (0_u64..).zip(outcomes) {
        let top = at.saturating_mul(ROW).saturating_add(32);
        let pixels = |per_mille: u64| per_mille.saturating_mul(HONEST) / 1_000;
        let (pay, bound) = (pixels(outcome.pay), pixels(outcome.bound).saturating_add(LEFT));
        let colour = if outcome.holds() { "#1b6ca8" } else { "#b5472f" };
        // Writing to a String does not fail.
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{}\">{}</text><rect x=\"{LEFT}\" y=\"{top}\" width=\"{pay}\" height=\"14\" fill=\"{colour}\"/>\
             <line x1=\"{bound}\" y1=\"{}\" x2=\"{bound}\" y2=\"{}\" stroke=\"black\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            top.saturating_add(12),
            escape(&outcome.strategy),
            top.saturating_sub(2),
            top.saturating_add(16),
            WIDTH.saturating_sub(110),
            top.saturating_add(12),
            escape(&format!("{} ≤ {}", decimal(outcome.pay), decimal(outcome.bound))),
        );
    }
    let honest = LEFT.saturating_add(HONEST);
    let bottom = height.saturating_sub(14);
    let _ = writeln!(
        svg,
        "<line x1=\"{honest}\" y1=\"26\" x2=\"{honest}\" y2=\"{bottom}\" stroke=\"#999\"/>\n</svg>"
    );
    svg
}

fn decimal(per_mille: u64) -> String {
    format!("{}.{:03}", per_mille / 1_000, per_mille % 1_000)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
