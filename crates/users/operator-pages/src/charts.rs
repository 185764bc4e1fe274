//! Charts of operators' pages: a load over time, the evidence of a test, and the operating characteristic of a test.

use maud::{Markup, html};
use muster_curves::{ChartRanges, number};
use muster_page_layout::text::plain;
use muster_status_views::audits::{EvidenceRow, RocRow, TestRow};

/// The size of a chart of evidence in its own units.
const SIZE: (f64, f64) = (600.0, 150.0);
/// The distance of a chart's lines to its edges.
const MARGIN: f64 = 4.0;

/// A curve of values of `0..=100`, the oldest first.
pub(crate) fn load_curve(values: &[u32], label: &str) -> Markup {
    let last = u32::try_from(values.len().saturating_sub(1))
        .unwrap_or(u32::MAX)
        .max(1);
    let ranges = ChartRanges {
        across: (0.0, f64::from(last)),
        values: (0.0, 100.0),
    };
    let points = (0_u32..).zip(values);
    let points: Vec<_> = points
        .map(|(place, value)| (f64::from(place), f64::from((*value).min(100))))
        .collect();
    html! {
        figure.chart {
            svg viewBox="0 0 240 30" height="30" width="240" role="img" aria-label=(label) {
                polyline.line points=(ranges.polyline(&points, (0.0, 0.0), (240.0, 30.0))) fill="none" stroke="currentColor" {}
            }
            figcaption { (label) }
        }
    }
}

/// The evidence of a test over its answers, on a logarithmic scale, with the alarm as a line.
pub(crate) fn evidence_chart(evidence: &EvidenceRow, test: TestRow, alarm: u64) -> Markup {
    let heights = evidence.points.iter().map(|point| height(point.log2));
    let (low, high) = heights.fold((-1.0, 1.0), |(low, high): (f64, f64), at| {
        (low.min(at), high.max(at))
    });
    let threshold = f64::from(u32::try_from(alarm.max(1)).unwrap_or(u32::MAX)).log2();
    let last = evidence
        .points
        .last()
        .map_or(1.0, |point| place(point.answer))
        .max(2.0);
    let ranges = ChartRanges {
        across: (1.0, last),
        values: (low, high.max(threshold) + 1.0),
    };
    let points: Vec<_> = evidence
        .points
        .iter()
        .map(|point| (place(point.answer), height(point.log2)))
        .collect();
    let name = match evidence.test.as_str() {
        "all" => "All answers".to_owned(),
        "public" => "Answers that may be published".to_owned(),
        "private" => "Users\u{2019} answers".to_owned(),
        "unseeded" => "Answers whose seeds nobody knows".to_owned(),
        "missing" => "Missing answers".to_owned(),
        other => plain(other),
    };
    let end = describe_test(test);
    let label = format!(
        "{name}: {end}; evidence from 2^{} to 2^{} over {} answers, the alarm at 2^{}",
        number(low),
        number(high),
        test.answers,
        number(threshold)
    );
    chart(
        &name,
        &end,
        &label,
        &html! {
            polyline.alarm points=(line(&ranges, &[(1.0, threshold), (last, threshold)])) fill="none" vector-effect="non-scaling-stroke" {}
            polyline points=(line(&ranges, &points)) fill="none" vector-effect="non-scaling-stroke" {}
        },
        &[
            format!("answers 1 to {}", test.answers),
            format!(
                "evidence 2^{} to 2^{}, alarm at 2^{}",
                number(low),
                number(high),
                number(threshold)
            ),
        ],
    )
}

/// The result of a test as text.
pub(crate) fn describe_test(test: TestRow) -> String {
    match test.alarm {
        None => format!("no alarm in {}", test.answers),
        Some(alarm) => format!("alarm after {alarm} of {}", test.answers),
    }
}

/// The share of cheats over the share of honest miners that reach a threshold.
pub(crate) fn roc_chart(curve: &RocRow) -> Markup {
    let share = |miners: u32| f64::from(miners) / f64::from(curve.trials.max(1));
    let points: Vec<_> = curve
        .points
        .iter()
        .map(|point| (share(point.honest), share(point.cheats)))
        .collect();
    // Above every threshold nobody is accused, and below every one everybody.
    let whole = [[(1.0, 1.0)].as_slice(), &points, &[(0.0, 0.0)]].concat();
    let ranges = ChartRanges {
        across: (0.0, 1.0),
        values: (0.0, 1.0),
    };
    let last = curve.points.last().copied().unwrap_or_default();
    let name = format!(
        "{} in {} % of {} answers",
        plain(&curve.alternative),
        percent(curve.share),
        curve.answers
    );
    let end = format!("{} of {} accused", last.cheats, curve.trials);
    let label = format!(
        "{name}: at the alarm {end}, and {} of {} honest miners",
        last.honest, curve.trials
    );
    chart(
        &name,
        &end,
        &label,
        &html! {
            polyline.chance points=(line(&ranges, &[(0.0, 0.0), (1.0, 1.0)])) fill="none" vector-effect="non-scaling-stroke" {}
            polyline points=(line(&ranges, &whole)) fill="none" vector-effect="non-scaling-stroke" {}
        },
        &[
            "honest miners accused, 0 to 100 %".to_owned(),
            "cheats accused, 0 to 100 %".to_owned(),
        ],
    )
}

/// A share in thousandths as per cent.
pub(crate) fn percent(per_mille: u16) -> String {
    if per_mille.is_multiple_of(10) {
        (per_mille / 10).to_string()
    } else {
        format!("{}.{}", per_mille / 10, per_mille % 10)
    }
}

fn chart(name: &str, end: &str, label: &str, lines: &Markup, scale: &[String; 2]) -> Markup {
    let (width, height) = SIZE;
    html! {
        figure.curve {
            figcaption { span { (name) } " " strong { (end) } }
            svg viewBox=(format!("0 0 {width} {height}")) preserveAspectRatio="none" role="img" aria-label=(label) { (lines) }
            div.scale { @for words in scale { span { (words) } } }
        }
    }
}

fn line(ranges: &ChartRanges, points: &[(f64, f64)]) -> String {
    let (width, height) = SIZE;
    ranges.polyline(
        points,
        (MARGIN, MARGIN),
        (width - 2.0 * MARGIN, height - 2.0 * MARGIN),
    )
}

#[expect(clippy::cast_precision_loss, reason = "thousandths of a logarithm in a chart")]
fn height(log2: i64) -> f64 {
    log2 as f64 / 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "the number of an answer in a chart")]
fn place(answer: u64) -> f64 {
    answer as f64
}

#[cfg(test)]
mod tests {
    use muster_status_views::audits::{EvidencePointRow, RocPointRow};

    use super::*;

    #[test]
    fn a_chart_of_evidence_shows_the_alarm_and_says_what_it_shows() {
        let point = |answer, log2| EvidencePointRow { answer, log2 };
        let evidence = EvidenceRow {
            test: "all".to_owned(),
            points: vec![point(1, 9_500), point(2, 19_000), point(3, 28_500)],
        };
        let test = TestRow {
            answers: 3,
            alarm: Some(3),
            ..TestRow::default()
        };
        let shown = evidence_chart(&evidence, test, 1 << 27).into_string();
        assert!(
            shown.contains("alarm after 3 of 3") && shown.contains("the alarm at 2^27"),
            "{shown}"
        );
        assert_eq!(shown.matches("<polyline").count(), 2);
        for odd in [
            EvidenceRow::default(),
            EvidenceRow {
                test: "<b>".to_owned(),
                points: vec![point(1, 0)],
            },
        ] {
            let shown = evidence_chart(&odd, TestRow::default(), 0).into_string();
            assert!(
                !shown.contains("NaN") && !shown.contains("inf") && !shown.contains("<b>"),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_characteristic_goes_from_nobody_to_everybody() {
        let curve = RocRow {
            alternative: "int4".to_owned(),
            share: 105,
            answers: 100,
            trials: 10,
            points: vec![
                RocPointRow {
                    evidence: 1,
                    honest: 5,
                    cheats: 10,
                },
                RocPointRow {
                    evidence: 2,
                    honest: 0,
                    cheats: 8,
                },
            ],
        };
        let shown = roc_chart(&curve).into_string();
        assert!(
            shown.contains(
                "int4 in 10.5 % of 100 answers: at the alarm 8 of 10 accused, and 0 of 10 honest miners"
            ),
            "{shown}"
        );
        assert!(
            shown.contains("points=\"596.0,4.0 300.0,4.0 4.0,32.4 4.0,146.0\""),
            "{shown}"
        );
        assert!(roc_chart(&RocRow::default()).into_string().contains("0 of 0"));
    }

    #[test]
    fn a_load_is_drawn_within_its_frame() {
        let shown = load_curve(&[0, 50, 300], "Processor").into_string();
        assert!(
            shown.contains("points=\"0.0,30.0 120.0,15.0 240.0,0.0\""),
            "{shown}"
        );
        assert!(load_curve(&[], "x").into_string().contains("points=\"\""));
    }
}
