//! A distribution as a picture: how many of all samples are at most so large.

use std::fmt::Write as _;

use crate::streams::quantile;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 250.0;
const TOP: f64 = 20.0;
const STEPS: u32 = 200;
const COLOURS: [&str; 4] = ["#1b6ca8", "#b5472f", "#4c8c2b", "#7a4fa3"];

/// One line of a picture.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The name in the legend.
    pub name: String,
    /// Not in any order.
    pub samples: Vec<f64>,
}

/// The lines over a logarithmic axis, as SVG. `unit` stands below it.
pub fn distributions(title: &str, unit: &str, lines: &[Curve]) -> String {
    let bounds = |share| {
        lines
            .iter()
            .filter_map(move |line| quantile(&line.samples, share))
    };
    let low = bounds(0.001)
        .fold(f64::INFINITY, f64::min)
        .max(1.0)
        .log10()
        .floor();
    let high = bounds(1.0).fold(10.0, f64::max).log10().ceil().max(low + 1.0);
    let x = |value: f64| LEFT + (value.max(1.0).log10() - low) / (high - low) * (WIDTH - LEFT - 20.0);
    let y = |share: f64| BOTTOM - share * (BOTTOM - TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"12\">{title}</text>\n"
    );
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let at = y(share);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"20\" y=\"{:.1}\">{:.0} %</text>",
            WIDTH - 20.0,
            at + 4.0,
            share * 100.0
        );
    }
    let mut decade = low;
    while decade <= high {
        let at = x(10_f64.powf(decade));
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{BOTTOM}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>",
            BOTTOM + 15.0,
            10_f64.powf(decade)
        );
        decade += 1.0;
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{unit}</text>",
        WIDTH / 2.0,
        BOTTOM + 30.0
    );
    for (number, (line, colour)) in lines.iter().zip(COLOURS).enumerate() {
        let mut points = String::new();
        for step in 0..=STEPS {
            let share = f64::from(step) / f64::from(STEPS);
            if let Some(value) = quantile(&line.samples, share) {
                let _ = write!(points, "{:.1},{:.1} ", x(value), y(share));
            }
        }
        let row = f64::from(u32::try_from(number).unwrap_or_default()).mul_add(14.0, TOP + 14.0);
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/><text x=\"{:.1}\" y=\"{row:.1}\" fill=\"{colour}\">{}</text>",
            points.trim_end(),
            LEFT + 8.0,
            line.name
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_within_the_picture() {
        let line = |name: &str, samples: &[f64]| Curve {
            name: name.to_owned(),
            samples: samples.to_vec(),
        };
        let svg = distributions("t", "us", &[line("a", &[1.0, 20.0, 3_000.0]), line("b", &[5.0])]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        for point in svg
            .split("points=\"")
            .skip(1)
            .flat_map(|rest| rest.split('"').next().unwrap().split(' '))
        {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!(
                (0.0..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y),
                "{point}"
            );
        }
    }
}
