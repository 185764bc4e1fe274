//! The curves of a job's metrics: [`Curve`] has the points of one within a frame, [`draw_svg`] makes a picture of
//! several, and [`describe_report`] writes a program's report in a line. [`ChartRanges`] lays out the points of any
//! chart.

use std::fmt::Write as _;

use muster_protocol::Timestamp;
use muster_protocol::job::{MetricValue, NonFiniteValue, ProgramReport};
use muster_protocol::rest::MetricSeries;

const WIDTH: f64 = 720.0;
/// The height of one curve with its title and its axis.
const ROW: f64 = 220.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 36.0;

/// The axis along which the points of a series lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveAxis {
    /// The program's steps.
    Steps,
    /// Seconds since the first point.
    Seconds,
}

impl CurveAxis {
    /// The axis of a series: steps if the program counted them at every point, else the time.
    fn of(series: &MetricSeries) -> Self {
        let mut steps = series.points.iter().map(|point| point.step);
        let mut others = series.non_finite.iter().map(|point| point.step);
        match steps.all(|step| step.is_some()) && others.all(|step| step.is_some()) {
            true => Self::Steps,
            false => Self::Seconds,
        }
    }

    /// The word for the axis.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Steps => "step",
            Self::Seconds => "seconds",
        }
    }

    /// The points of a series along this axis.
    fn coordinates(self, series: &MetricSeries) -> Vec<(f64, f64)> {
        let begun = first_time(series);
        let points = series.points.iter();
        let point = points.map(|point| (self.place(begun, point.at, point.step), point.value.get()));
        point.collect()
    }

    /// The places of the values that are no finite numbers along this axis.
    fn gaps(self, series: &MetricSeries) -> Vec<f64> {
        let begun = first_time(series);
        let points = series.non_finite.iter();
        points
            .map(|point| self.place(begun, point.at, point.step))
            .collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "steps and microseconds on a picture")]
    fn place(self, begun: Option<Timestamp>, at: Timestamp, step: Option<u64>) -> f64 {
        match self {
            Self::Steps => step.unwrap_or_default() as f64,
            Self::Seconds => begun.map_or(0.0, |begun| at.since(begun).as_secs_f64()),
        }
    }
}

/// The time of the oldest value of a series.
fn first_time(series: &MetricSeries) -> Option<Timestamp> {
    let finite = series.points.first().map(|point| point.at);
    let other = series.non_finite.first().map(|point| point.at);
    finite.into_iter().chain(other).min()
}

/// The smallest and the largest of some numbers; a range of one where there is a single number, or none.
fn range(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| {
        (low.min(number), high.max(number))
    });
    match low < high {
        true => (low, high),
        false if low.is_finite() => (low - 0.5, low + 0.5),
        false => (0.0, 1.0),
    }
}

/// One series within its frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The axis along which the points lie.
    pub axis: CurveAxis,
    /// The first and the last place on the axis.
    pub across: (f64, f64),
    /// The smallest and the largest value.
    pub values: (f64, f64),
    points: Vec<(f64, f64)>,
    gaps: Vec<f64>,
}

impl Curve {
    /// The curve of a series.
    pub fn of(series: &MetricSeries) -> Self {
        let axis = CurveAxis::of(series);
        let (points, gaps) = (axis.coordinates(series), axis.gaps(series));
        Self {
            axis,
            across: range(points.iter().map(|(x, _)| *x).chain(gaps.iter().copied())),
            values: range(points.iter().map(|(_, y)| *y)),
            points,
            gaps,
        }
    }

    /// The points along the axis and by value.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// The places along the axis of the values that are no finite numbers.
    pub fn gaps(&self) -> &[f64] {
        &self.gaps
    }

    /// The data of an SVG `path` with a mark at the floor of such a frame for each value that is no finite number.
    pub fn gap_marks(&self, corner: (f64, f64), size: (f64, f64)) -> String {
        let floor = corner.1 + size.1;
        let marks = self.gaps.iter().map(|at| {
            let x = corner.0 + part(*at, self.across) * size.0;
            format!("M{x:.1},{floor:.1}v-6")
        });
        marks.collect()
    }

    /// The points of an SVG `polyline` in a frame whose upper left corner lies at `corner`, `size` wide and high.
    pub fn polyline(&self, corner: (f64, f64), size: (f64, f64)) -> String {
        let ranges = ChartRanges {
            across: self.across,
            values: self.values,
        };
        ranges.polyline(&self.points, corner, size)
    }
}

/// The ranges that a chart shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChartRanges {
    /// The first and the last place on the axis, which differ.
    pub across: (f64, f64),
    /// The smallest and the largest value, which differ.
    pub values: (f64, f64),
}

impl ChartRanges {
    /// The points of an SVG `polyline` in a frame whose upper left corner lies at `corner`, `size` wide and high.
    pub fn polyline(&self, points: &[(f64, f64)], corner: (f64, f64), size: (f64, f64)) -> String {
        let points = points.iter().map(|(at, value)| {
            let x = corner.0 + part(*at, self.across) * size.0;
            let y = corner.1 + (1.0 - part(*value, self.values)) * size.1;
            format!("{x:.1},{y:.1}")
        });
        points.collect::<Vec<_>>().join(" ")
    }
}

/// The place of a value between two others, 0 at the low one and 1 at the high one.
fn part(value: f64, (low, high): (f64, f64)) -> f64 {
    // Halves, because the distance of two finite numbers may be infinite.
    (value / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0)
}

/// The curves of some metrics as an SVG picture, one below the other. `title` is any text.
pub fn draw_svg(title: &str, series: &[MetricSeries]) -> String {
    let rows = series.len().max(1);
    #[expect(clippy::cast_precision_loss, reason = "a job has at most 64 metrics")]
    let height = rows as f64 * ROW + 24.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n<text x=\"10\" y=\"18\">{}</text>\n",
        escape(title)
    );
    let mut top = 24.0;
    for one in series {
        draw_row(&mut svg, one, top);
        top += ROW;
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_row(svg: &mut String, series: &MetricSeries, top: f64) {
    let curve = Curve::of(series);
    let (axis, (first, last), (low, high)) = (curve.axis, curve.across, curve.values);
    let (width, height) = (WIDTH - LEFT - RIGHT, ROW - TOP - BOTTOM);
    let points = curve.polyline((LEFT, top + TOP), (width, height));
    let (floor, ceiling) = (top + TOP + height, top + TOP);
    // Writing to a String does not fail.
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>\n\
         <path d=\"M{LEFT},{ceiling:.1}V{floor:.1}H{:.1}\" fill=\"none\" stroke=\"#999\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"{:.1}\">{} {}</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
         <polyline points=\"{}\" fill=\"none\" stroke=\"#1b6ca8\" stroke-width=\"1.5\"/>\n\
         <path d=\"{}\" stroke=\"#b3261e\" stroke-width=\"1.5\"/>",
        top + 24.0,
        escape(&describe_title(series)),
        WIDTH - RIGHT,
        LEFT - 6.0,
        ceiling + 10.0,
        number(high),
        LEFT - 6.0,
        floor,
        number(low),
        floor + 16.0,
        axis.label(),
        number(first),
        WIDTH - RIGHT,
        floor + 16.0,
        number(last),
        points,
        curve.gap_marks((LEFT, top + TOP), (width, height)),
    );
}

/// The name of a series, and how many of its values are no finite numbers: `loss (NaN now; 3 of 10 not finite)`.
pub fn describe_title(series: &MetricSeries) -> String {
    let others = series.non_finite.len();
    let all = series.points.len().saturating_add(others);
    match series.newest() {
        _ if others == 0 => series.name.to_string(),
        Some(newest) => format!(
            "{} ({} now; {others} of {all} not finite)",
            series.name,
            value(newest)
        ),
        None => series.name.to_string(),
    }
}

/// A metric's value as people read it.
pub fn value(value: Result<MetricValue, NonFiniteValue>) -> String {
    value.map_or_else(|other| other.to_string(), |finite| number(finite.get()))
}

/// A number with four significant digits, as people read it.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(1e-3..1e6).contains(&size) {
        return format!("{value:.3e}");
    }
    let digits = (3.0 - size.log10().floor()).clamp(0.0, 6.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 6"
    )]
    let text = format!("{value:.*}", digits as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A report in a line: `epoch 3 of 10, step 300 of 1200, 25 %, loss 0.5312, 2 min left`.
pub fn describe_report(report: &ProgramReport) -> String {
    let counted = |word: &str, count: Option<u64>, all: Option<u64>| {
        let of = all.map(|all| format!(" of {all}")).unwrap_or_default();
        count.map(|count| format!("{word} {count}{of}"))
    };
    let done = report
        .done_permille
        .map(|permille| format!("{}.{} %", permille / 10, permille % 10));
    let metrics = report.metrics.iter();
    let metrics = metrics.map(|(name, value)| Some(describe_metric(name.as_str(), value.get())));
    let others = report.non_finite.iter();
    let others = others.map(|(name, value)| Some(format!("{name} {value}")));
    let left = report.eta_s.map(|seconds| format!("{} left", duration(seconds)));
    [
        counted("epoch", report.epoch, report.epochs),
        counted("step", report.step, report.steps),
        done,
    ]
    .into_iter()
    .chain(metrics)
    .chain(others)
    .chain([left])
    .flatten()
    .collect::<Vec<_>>()
    .join(", ")
}

/// A metric as text. The executor adds those that begin with `machine/`.
fn describe_metric(name: &str, value: f64) -> String {
    let gib = || format!("{} GiB", number(value / 1_024.0));
    match name {
        "machine/memory_mib" => format!("memory {}", gib()),
        "machine/cpu_percent" => format!("CPU {} %", number(value)),
        "machine/gpu_percent" => format!("GPU {} %", number(value)),
        "machine/gpu_memory_mib" => format!("GPU memory {}", gib()),
        _ => format!("{name} {}", number(value)),
    }
}

/// A time in its two largest units: `42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

fn escape(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    plain
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use muster_protocol::rest::{MetricPoint, NonFinitePoint};

    use super::*;

    fn series(points: &[(i64, Option<u64>, f64)]) -> MetricSeries {
        let point = |(at, step, value): &(i64, Option<u64>, f64)| MetricPoint {
            at: Timestamp::from_secs(*at),
            step: *step,
            value: (*value).try_into().unwrap(),
        };
        MetricSeries {
            name: "loss".parse().unwrap(),
            points: points.iter().map(point).collect(),
            non_finite: Vec::new(),
        }
    }

    #[test]
    fn values_that_are_not_finite_are_marked_at_their_places_and_named() {
        let mut diverged = series(&[(0, Some(0), 4.0), (1, Some(1), 2.0)]);
        let gap = |at: i64, value: NonFiniteValue| NonFinitePoint {
            at: Timestamp::from_secs(at),
            step: u64::try_from(at).ok(),
            value,
        };
        diverged.non_finite = vec![gap(2, NonFiniteValue::Infinity), gap(4, NonFiniteValue::NaN)];
        let curve = Curve::of(&diverged);
        assert_eq!((curve.across, curve.values), ((0.0, 4.0), (2.0, 4.0)));
        assert_eq!(curve.gaps(), [2.0, 4.0]);
        let svg = draw_svg("", std::slice::from_ref(&diverged));
        for part in [
            "loss (NaN now; 2 of 4 not finite)",
            "d=\"M390.0,208.0v-6M700.0,208.0v-6\"",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        diverged.points.clear();
        let svg = draw_svg("", std::slice::from_ref(&diverged));
        assert!(svg.contains("2 of 2 not finite"), "{svg}");
        let report = ProgramReport {
            epoch: Some(2),
            non_finite: [("loss".parse().unwrap(), NonFiniteValue::NaN)].into(),
            ..ProgramReport::default()
        };
        assert_eq!(describe_report(&report), "epoch 2, loss NaN");
    }

    #[test]
    fn points_lie_along_steps_where_all_have_one_and_along_the_time_else() {
        let steps = series(&[(10, Some(5), 2.0), (20, Some(10), 1.0)]);
        assert_eq!(CurveAxis::of(&steps), CurveAxis::Steps);
        assert_eq!(CurveAxis::Steps.coordinates(&steps), [(5.0, 2.0), (10.0, 1.0)]);
        let times = series(&[(10, Some(5), 2.0), (25, None, 1.0)]);
        assert_eq!(CurveAxis::of(&times), CurveAxis::Seconds);
        assert_eq!(CurveAxis::Seconds.coordinates(&times), [(0.0, 2.0), (15.0, 1.0)]);
    }

    #[test]
    fn a_picture_holds_every_point_within_its_frame_and_no_markup_of_others() {
        let svg = draw_svg(
            "<job> & co",
            &[series(&[(0, Some(0), 4.0), (1, Some(1), 2.0), (2, Some(2), 3.0)])],
        );
        assert!(svg.contains("&lt;job&gt; &amp; co"), "{svg}");
        assert!(
            svg.contains("points=\"80.0,58.0 390.0,208.0 700.0,133.0\""),
            "{svg}"
        );
        for odd in [
            series(&[]),
            series(&[(0, None, 7.0)]),
            series(&[(0, None, 1e300), (1, None, -1e300)]),
        ] {
            let svg = draw_svg("", std::slice::from_ref(&odd));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(draw_svg("", &[]).ends_with("</svg>\n"));
    }

    #[test]
    fn numbers_and_reports_read_as_people_write_them() {
        for (value, text) in [
            (0.0, "0"),
            (0.53125, "0.5312"),
            (12.0, "12"),
            (-1234.5, "-1234"),
            (1e-9, "1.000e-9"),
            (3e8, "3.000e8"),
            (2.5, "2.5"),
        ] {
            assert_eq!(number(value), text);
        }
        let report = ProgramReport {
            done_permille: Some(255),
            epoch: Some(3),
            epochs: Some(10),
            step: Some(300),
            metrics: [("loss".parse().unwrap(), 0.5.try_into().unwrap())].into(),
            elapsed_s: 30,
            eta_s: Some(125),
            ..ProgramReport::default()
        };
        assert_eq!(
            describe_report(&report),
            "epoch 3 of 10, step 300, 25.5 %, loss 0.5, 2 min 5 s left"
        );
        assert_eq!(describe_report(&ProgramReport::default()), "");
        let values = [
            ("machine/cpu_percent", 150.0),
            ("machine/gpu_memory_mib", 10_342.4),
            ("machine/gpu_percent", 87.0),
            ("machine/memory_mib", 1_536.0),
        ];
        let machine = ProgramReport {
            metrics: values
                .map(|(name, value)| (name.parse().unwrap(), value.try_into().unwrap()))
                .into(),
            ..ProgramReport::default()
        };
        assert_eq!(
            describe_report(&machine),
            "CPU 150 %, GPU memory 10.1 GiB, GPU 87 %, memory 1.5 GiB"
        );
        assert_eq!(
            [duration(59), duration(7_320), duration(360_000)],
            ["59 s", "2 h 2 min", "4 d 4 h"]
        );
    }
}
