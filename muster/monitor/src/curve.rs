//! The curve of one metric as text, for terminals.

use muster_curves::{Curve, describe_title, number};
use muster_protocol::rest::MetricSeries;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Widget as _};

/// Draws a series with its axes into `height` lines of `width` columns, both within what a terminal has.
pub fn draw_text(series: &MetricSeries, width: u16, height: u16) -> String {
    let curve = Curve::of(series);
    let ((first, last), (low, high)) = (curve.across, curve.values);
    let gaps: Vec<_> = curve.gaps().iter().map(|at| (*at, low)).collect();
    let marked = Dataset::default()
        .marker(Marker::Dot)
        .graph_type(GraphType::Scatter)
        .data(&gaps);
    let dataset = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(match curve.points().len() {
            0 | 1 => GraphType::Scatter,
            _ => GraphType::Line,
        })
        .data(curve.points());
    let across = Axis::default()
        .title(curve.axis.label())
        .bounds([first, last])
        .labels([number(first), number(last)]);
    let up = Axis::default()
        .title(describe_title(series))
        .bounds([low, high])
        .labels([number(low), number(high)]);
    let area = Rect::new(0, 0, width.clamp(20, 400), height.clamp(6, 100));
    let mut buffer = Buffer::empty(area);
    Chart::new(vec![dataset, marked])
        .x_axis(across)
        .y_axis(up)
        .render(area, &mut buffer);
    let rows = (0..area.height).map(|row| {
        let cells = (0..area.width).filter_map(|column| Some(buffer.cell((column, row))?.symbol()));
        cells.collect::<String>().trim_end().to_owned()
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// The columns of the terminal at the standard output; `None` if there is none.
pub fn terminal_width() -> Option<u16> {
    use std::io::IsTerminal as _;
    let size = std::io::stdout()
        .is_terminal()
        .then(ratatui::crossterm::terminal::size)?;
    size.ok().map(|(width, _)| width)
}

#[cfg(test)]
mod tests {
    use muster_protocol::Timestamp;
    use muster_protocol::job::NonFiniteValue;
    use muster_protocol::rest::{MetricPoint, NonFinitePoint};

    use super::*;

    fn series(values: &[f64]) -> MetricSeries {
        let points = (0_u32..).zip(values).map(|(step, value)| MetricPoint {
            at: Timestamp::from_secs(step.into()),
            step: Some(step.into()),
            value: (*value).try_into().unwrap(),
        });
        MetricSeries {
            name: "loss".parse().unwrap(),
            points: points.collect(),
            non_finite: Vec::new(),
        }
    }

    #[test]
    fn a_falling_curve_falls_and_its_axes_are_named() {
        let text = draw_text(&series(&[4.0, 3.0, 2.0, 1.0]), 60, 12);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 12);
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{text}");
        for word in ["loss", "step", "4", "1", "3"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let is_braille = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c);
        let first_mark = |row: &&str| row.chars().position(is_braille);
        let marks: Vec<_> = lines.iter().filter_map(first_mark).collect();
        assert!(marks.len() > 5 && marks.is_sorted(), "{text}");
    }

    #[test]
    fn values_that_are_not_finite_are_named_and_marked_at_the_floor() {
        let mut diverged = series(&[4.0, 3.0, 2.0, 1.0]);
        let gap = |second: u32| NonFinitePoint {
            at: Timestamp::from_secs(second.into()),
            step: Some(second.into()),
            value: NonFiniteValue::NaN,
        };
        diverged.non_finite = vec![gap(5), gap(9)];
        let text = draw_text(&diverged, 60, 12);
        assert!(text.contains("loss (NaN now; 2 of 6 not finite)"), "{text}");
        assert!(text.contains('\u{2022}'), "{text}");
    }

    #[test]
    fn any_series_fits_any_terminal() {
        for values in [&[][..], &[1.0], &[1.0, 1.0], &[1e300, -1e300]] {
            for (width, height) in [(0, 0), (20, 6), (1_000, 1_000)] {
                assert!(!draw_text(&series(values), width, height).is_empty());
            }
        }
    }
}
