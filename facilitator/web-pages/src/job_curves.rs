//! The metrics on the page of a job: the program's newest report as text, and a curve of each metric.

use maud::{Markup, html};
use muster_curves::{Curve, describe_report, number, value};
use muster_protocol::Timestamp;
use muster_protocol::rest::{JobMetricsView, MetricSeries};

use crate::text::time;

/// The size of a curve in its own units.
const SIZE: (f64, f64) = (600.0, 150.0);

/// The section. It is empty until the program reports something, and the script puts it in then.
pub(crate) fn section(metrics: &JobMetricsView, now: Timestamp) -> Markup {
    let newest = metrics.newest.as_ref();
    html! {
        section #metrics data-swap aria-label="Metrics" hidden[newest.is_none()] {
            h2 { "Metrics" }
            @if let Some(state) = newest {
                p { (describe_report(&state.report)) " " span.dim { "(" (time(state.at, now)) ")" } }
            }
            @if !metrics.series.is_empty() {
                div.curves { @for series in &metrics.series { (figure(series)) } }
            }
        }
    }
}

fn figure(series: &MetricSeries) -> Markup {
    let curve = Curve::of(series);
    let (width, height) = SIZE;
    let last = series.newest().map_or_else(|| number(0.0), value);
    let gaps = match series.non_finite.len() {
        0 => String::new(),
        some => format!("; {some} not finite"),
    };
    let ((first, end), (low, high)) = (curve.across, curve.values);
    let label = format!(
        "{}: from {} to {}, {} now; {} {} to {}{gaps}",
        series.name,
        number(low),
        number(high),
        last,
        curve.axis.label(),
        number(first),
        number(end)
    );
    html! {
        figure.curve {
            figcaption { span.mono { (series.name) } " " strong { (last) } }
            svg viewBox=(format!("0 0 {width} {height}")) preserveAspectRatio="none" role="img" aria-label=(label) {
                polyline points=(curve.polyline((2.0, 4.0), (width - 4.0, height - 8.0))) fill="none"
                    vector-effect="non-scaling-stroke" {}
                @if !series.non_finite.is_empty() {
                    path.gap d=(curve.gap_marks((2.0, 4.0), (width - 4.0, height - 8.0))) vector-effect="non-scaling-stroke" {}
                }
            }
            div.scale {
                span { (curve.axis.label()) " " (number(first)) " to " (number(end)) }
                span { (number(low)) " to " (number(high)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::job::{NonFiniteValue, ProgramReport};
    use muster_protocol::rest::{MetricPoint, NonFinitePoint, ReportedState};

    use super::*;

    #[test]
    fn a_curve_says_in_words_what_it_shows_and_nothing_is_shown_before_a_report() {
        let at = Timestamp::from_secs(1_769_000_000);
        let point = |step: u64, value: f64| MetricPoint {
            at,
            step: Some(step),
            value: value.try_into().unwrap(),
        };
        let metrics = JobMetricsView {
            newest: Some(ReportedState {
                at,
                report: ProgramReport {
                    epoch: Some(2),
                    ..ProgramReport::default()
                },
            }),
            series: vec![MetricSeries {
                name: "loss".parse().unwrap(),
                points: vec![point(1, 4.0), point(2, 0.5)],
                non_finite: Vec::new(),
            }],
        };
        let page = section(&metrics, at).into_string();
        for words in [
            "epoch 2",
            "loss: from 0.5 to 4, 0.5 now; step 1 to 2",
            "points=\"2.0,4.0 598.0,146.0\"",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        let mut diverged = metrics;
        diverged.series[0].non_finite.push(NonFinitePoint {
            at: Timestamp::from_secs(1_769_000_001),
            step: Some(3),
            value: NonFiniteValue::NaN,
        });
        let page = section(&diverged, at).into_string();
        for words in [
            "NaN now; step 1 to 3; 1 not finite",
            "<strong>NaN</strong>",
            "M598.0,146.0v-6",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        let empty = section(&JobMetricsView::default(), at).into_string();
        assert!(empty.contains("hidden") && !empty.contains("svg"), "{empty}");
    }
}
