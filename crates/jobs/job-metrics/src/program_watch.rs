//! The newest state of one running program, from the lines of its progress file and of its standard output.

use std::collections::{BTreeMap, VecDeque};

use muster_protocol::Timestamp;
use muster_protocol::job::{MAX_METRICS, MetricName, MetricValue, ProgramReport};

use crate::line_splitter::LineSplitter;
use crate::metric_rules::{FoundMetric, MetricRules};
use crate::progress_line::{self, ProgressLine};

/// Bytes of standard output in a second that are searched for metrics. A program that prints more has metrics in what
/// was searched.
const SEARCHED_BYTES_A_SECOND: usize = 256 * 1024;

/// Lines of the progress file in a second that are read.
const LINES_A_SECOND: u32 = 1_000;

/// The newest samples of the part that is done, by which the end is estimated.
const SAMPLES: usize = 10;

/// The newest state of a program that reports itself.
#[derive(Clone, Debug)]
pub struct ProgramWatch {
    rules: MetricRules,
    started: Timestamp,
    file: LineSplitter,
    stdout: LineSplitter,
    state: ProgressLine,
    /// When the program last reported how long it will take, and what it reported.
    own_eta: Option<(Timestamp, u64)>,
    /// The part that is done, with its time; the oldest first.
    samples: VecDeque<(Timestamp, f64)>,
    /// Something has come since the last report.
    is_changed: bool,
    /// The checkpoints that the program has named.
    named: BTreeMap<String, NamedCheckpoint>,
    /// How often any checkpoint was named.
    namings: u64,
    /// The most that a forgotten checkpoint was named: one that is named anew counts on from there.
    forgotten_times: u32,
    second: Second,
    ignored: u64,
    /// How often something new was reported.
    moves: u64,
}

/// The most names of checkpoints that are remembered: the newest ones.
const MAX_NAMED: usize = 1_000;

/// A checkpoint that a program has named.
#[derive(Clone, Debug, Default)]
struct NamedCheckpoint {
    times: u32,
    /// The number of the naming among all of them when it was last named.
    naming: u64,
    /// The state when it was last named.
    state: ProgressLine,
}

/// The amount that was read in the second from `began` on.
#[derive(Clone, Copy, Debug)]
struct Second {
    began: Timestamp,
    searched: usize,
    lines: u32,
}

impl ProgramWatch {
    /// A watch on a program that started at `started`.
    pub fn new(rules: MetricRules, started: Timestamp) -> Self {
        Self {
            rules,
            started,
            file: LineSplitter::default(),
            stdout: LineSplitter::default(),
            state: ProgressLine::default(),
            own_eta: None,
            samples: VecDeque::new(),
            is_changed: false,
            named: BTreeMap::new(),
            namings: 0,
            forgotten_times: 0,
            second: Second {
                began: started,
                searched: 0,
                lines: 0,
            },
            ignored: 0,
            moves: 0,
        }
    }

    /// Takes the next bytes of the progress file.
    pub fn read_file(&mut self, piece: &[u8], now: Timestamp) {
        self.second.begin_if_over(now);
        let mut splitter = std::mem::take(&mut self.file);
        let long = splitter.push(piece, |line| self.read_line(line, now));
        self.file = splitter;
        self.ignored = self.ignored.saturating_add(long);
    }

    /// Takes the next bytes of the standard output.
    pub fn read_stdout(&mut self, piece: &[u8], now: Timestamp) {
        if self.rules.is_empty() {
            return;
        }
        self.second.begin_if_over(now);
        let room = SEARCHED_BYTES_A_SECOND.saturating_sub(self.second.searched);
        let (searched, passed_over) = piece.split_at(room.min(piece.len()));
        self.second.searched = self.second.searched.saturating_add(searched.len());
        let mut splitter = std::mem::take(&mut self.stdout);
        splitter.push(searched, |line| {
            let found = self.rules.find(&String::from_utf8_lossy(line));
            self.add_metrics(found);
        });
        splitter.pass_over(passed_over);
        self.stdout = splitter;
    }

    /// A number that grows each time that the program names this checkpoint; 0 if it never has. It is how often, as
    /// long as no name was forgotten.
    pub fn times_named(&self, checkpoint: &str) -> u32 {
        self.named.get(checkpoint).map_or(0, |named| named.times)
    }

    /// The epoch, the step and the value of a metric when the program last named this checkpoint; the newest ones if it
    /// has not named it.
    pub fn place_of(
        &self,
        checkpoint: &str,
        metric: Option<&MetricName>,
    ) -> (Option<u64>, Option<u64>, Option<MetricValue>) {
        let named = self.named.get(checkpoint).map(|named| &named.state);
        let state = named.unwrap_or(&self.state);
        let value = metric.and_then(|name| state.metrics.get(name).copied());
        (state.epoch, state.step, value)
    }

    /// A number that grows each time that a line of the file or a metric reports something new.
    pub const fn moves(&self) -> u64 {
        self.moves
    }

    /// The state at `now`; `None` if nothing has come since the last report, or nothing at all.
    pub fn take_report(&mut self, now: Timestamp) -> Option<ProgramReport> {
        std::mem::take(&mut self.is_changed).then(|| self.report(now))
    }

    /// Lines of the progress file that reported nothing, or not all that they meant to report.
    pub const fn ignored_lines(&self) -> u64 {
        self.ignored
    }

    fn report(&self, now: Timestamp) -> ProgramReport {
        let state = &self.state;
        ProgramReport {
            done_permille: state.done_permille,
            epoch: state.epoch,
            epochs: state.epochs,
            step: state.step,
            steps: state.steps,
            metrics: state.metrics.clone(),
            non_finite: state.non_finite.clone(),
            elapsed_s: now.since(self.started).as_secs(),
            eta_s: self.estimate_end(now),
        }
    }

    fn read_line(&mut self, line: &[u8], now: Timestamp) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        self.second.lines = self.second.lines.saturating_add(1);
        if self.second.lines > LINES_A_SECOND {
            self.ignored = self.ignored.saturating_add(1);
            return;
        }
        let (read, errors) = progress_line::parse(line);
        if !errors.is_empty() {
            self.ignored = self.ignored.saturating_add(1);
        }
        if read == ProgressLine::default() {
            return;
        }
        let before = (self.state.epoch, self.state.step, self.state.done_permille);
        let newer = |new: Option<u64>, old: &mut Option<u64>| *old = new.or(*old);
        newer(read.epoch, &mut self.state.epoch);
        newer(read.epochs, &mut self.state.epochs);
        newer(read.step, &mut self.state.step);
        newer(read.steps, &mut self.state.steps);
        self.state.done_permille = read.done_permille.or(self.state.done_permille);
        if before != (self.state.epoch, self.state.step, self.state.done_permille)
            || read.checkpoint.is_some()
        {
            self.moves = self.moves.saturating_add(1);
        }
        self.own_eta = read.eta_s.map(|eta| (now, eta)).or(self.own_eta);
        self.is_changed = true;
        let finite = read.metrics.into_iter().map(|(name, value)| (name, Ok(value)));
        let others = read
            .non_finite
            .into_iter()
            .map(|(name, value)| (name, Err(value)));
        self.add_metrics(finite.chain(others));
        self.add_sample(now);
        if let Some(name) = read.checkpoint {
            self.note_named(name);
        }
    }

    /// Notes that a checkpoint was named. With too many names, the one that was named longest ago is forgotten.
    fn note_named(&mut self, name: String) {
        if self.named.len() >= MAX_NAMED && !self.named.contains_key(&name) {
            let oldest = self.named.iter().min_by_key(|(_, named)| named.naming);
            if let Some(forgotten) = oldest
                .map(|(name, _)| name.clone())
                .and_then(|name| self.named.remove(&name))
            {
                self.forgotten_times = self.forgotten_times.max(forgotten.times);
            }
        }
        self.namings = self.namings.saturating_add(1);
        let unknown = NamedCheckpoint {
            times: self.forgotten_times,
            ..NamedCheckpoint::default()
        };
        let named = self.named.entry(name).or_insert(unknown);
        named.times = named.times.saturating_add(1);
        named.naming = self.namings;
        named.state = self.state.clone();
    }

    /// Adds metrics. Names beyond the bound are left out. A value that is not finite always moves, because it differs
    /// from itself: a program that has diverged works on.
    fn add_metrics(&mut self, metrics: impl IntoIterator<Item = FoundMetric>) {
        let ProgressLine {
            metrics: finite,
            non_finite,
            ..
        } = &mut self.state;
        for (name, value) in metrics {
            let has_room = finite.len().saturating_add(non_finite.len()) < MAX_METRICS;
            if !has_room && !finite.contains_key(&name) && !non_finite.contains_key(&name) {
                continue;
            }
            let has_moved = match value {
                Ok(value) => {
                    non_finite.remove(&name);
                    finite.insert(name, value) != Some(value)
                }
                Err(value) => {
                    finite.remove(&name);
                    non_finite.insert(name, value);
                    true
                }
            };
            self.is_changed = true;
            self.moves = self.moves.saturating_add(u64::from(has_moved));
        }
    }

    /// Notes the part that is done, if it is known and has grown. A smaller one means that the program counts anew.
    fn add_sample(&mut self, now: Timestamp) {
        let Some(done) = self.done() else { return };
        match self.samples.back() {
            Some((_, before)) if done < *before => self.samples.clear(),
            Some((at, before)) if done <= *before || now <= *at => return,
            Some(_) | None => {}
        }
        self.samples.push_back((now, done));
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    /// The part that is done, from 0 to 1: as the program reports, else its steps, else its epochs.
    fn done(&self) -> Option<f64> {
        let state = &self.state;
        let said = state.done_permille.map(|permille| f64::from(permille) / 1_000.0);
        said.or_else(|| part(state.step, state.steps))
            .or_else(|| part(state.epoch, state.epochs))
    }

    /// The seconds that are left: the program's word, less the time since, or by the pace of the last samples.
    fn estimate_end(&self, now: Timestamp) -> Option<u64> {
        if let Some((at, eta)) = self.own_eta {
            return Some(eta.saturating_sub(now.since(at).as_secs()));
        }
        let ((first_at, first), (last_at, last)) = (self.samples.front()?, self.samples.back()?);
        let (took, grown) = (last_at.since(*first_at).as_secs_f64(), last - first);
        let left = (grown > 0.0).then(|| took * (1.0 - last) / grown)?;
        let since = now.since(*last_at).as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float keeps to the range of the integer"
        )]
        let whole = (left - since).max(0.0) as u64;
        Some(whole)
    }
}

impl Second {
    fn begin_if_over(&mut self, now: Timestamp) {
        if now.since(self.began).as_secs() >= 1 {
            *self = Self {
                began: now,
                searched: 0,
                lines: 0,
            };
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of epochs and steps")]
fn part(count: Option<u64>, all: Option<u64>) -> Option<f64> {
    let (count, all) = (count?, all.filter(|all| *all > 0)?);
    Some((count as f64 / all as f64).min(1.0))
}

#[cfg(test)]
mod tests {
    use muster_protocol::job::MetricRule;
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    fn watch(rules: &[(&str, &str)]) -> ProgramWatch {
        let rule = |(name, pattern): &(&str, &str)| MetricRule {
            name: name.parse().unwrap(),
            pattern: (*pattern).to_owned(),
        };
        let rules: Vec<_> = rules.iter().map(rule).collect();
        ProgramWatch::new(MetricRules::compile(&rules).unwrap(), at(100))
    }

    fn metric(report: &ProgramReport, name: &str) -> Option<f64> {
        report
            .metrics
            .get(&name.parse().unwrap())
            .map(|value| value.get())
    }

    #[test]
    fn the_newest_names_are_remembered_and_a_forgotten_one_counts_on_when_it_is_named_anew() {
        let mut watch = watch(&[]);
        let mut name = |number: usize, second: i64| {
            let line = format!("{{\"step\":{number},\"checkpoint\":\"c{number}\"}}\n");
            watch.read_file(line.as_bytes(), at(second));
            watch.clone()
        };
        name(0, 100);
        for number in 0..=MAX_NAMED {
            // Only a limited number of lines is read in one second.
            name(number, 101 + i64::from(number > MAX_NAMED / 2));
        }
        let full = name(MAX_NAMED, 103);
        assert_eq!(full.named.len(), MAX_NAMED);
        assert_eq!((full.times_named("c0"), full.times_named("c1")), (0, 1));
        assert_eq!(
            full.times_named(&format!("c{MAX_NAMED}")),
            4,
            "two more than a forgotten one had"
        );
        assert_eq!(
            name(0, 104).times_named("c0"),
            3,
            "more than when it was forgotten"
        );
    }

    #[test]
    fn a_checkpoint_has_the_place_where_it_was_named_last() {
        let mut watch = watch(&[]);
        let loss = "loss".parse().unwrap();
        watch.read_file(
            b"{\"step\":4,\"metrics\":{\"loss\":3.0},\"checkpoint\":\"a\"}\n{\"step\":8,\"checkpoint\":\"b\"}\n{\"step\":9}\n",
            at(101),
        );
        assert_eq!(watch.place_of("a", None), (None, Some(4), None));
        let (_, step, value) = watch.place_of("b", Some(&loss));
        assert_eq!((step, value.map(|value| value.get())), (Some(8), Some(3.0)));
        assert_eq!(watch.place_of("c", None).1, Some(9), "it was not named");
        watch.read_file(b"{\"step\":12,\"checkpoint\":\"a\"}\n", at(102));
        assert_eq!(watch.place_of("a", None).1, Some(12));
        assert_eq!((watch.times_named("a"), watch.times_named("c")), (2, 0));
    }

    #[test]
    fn both_sources_make_one_report_and_silence_makes_none() {
        let mut watch = watch(&[("loss", r"loss=([0-9.]+)")]);
        assert_eq!(watch.take_report(at(101)), None);
        watch.read_stdout(b"step 1 loss=2.5\nstep 2 loss=", at(102));
        watch.read_file(
            b"{\"epoch\":1,\"epochs\":4,\"metrics\":{\"accuracy\":0.5}}\n{\"step\":",
            at(103),
        );
        let report = watch.take_report(at(110)).unwrap();
        assert_eq!(
            (report.epoch, report.epochs, report.step),
            (Some(1), Some(4), None)
        );
        assert_eq!(
            (metric(&report, "loss"), metric(&report, "accuracy")),
            (Some(2.5), Some(0.5))
        );
        assert_eq!(
            (report.elapsed_s, report.eta_s),
            (10, None),
            "one sample has no pace"
        );
        assert_eq!(watch.take_report(at(111)), None, "nothing came since");
        watch.read_stdout(b"1.5\n", at(112));
        watch.read_file(b"7}\n", at(112));
        let report = watch.take_report(at(113)).unwrap();
        assert_eq!((metric(&report, "loss"), report.step), (Some(1.5), Some(7)));
        assert_eq!(report.epoch, Some(1), "a part that a line leaves out stays");
    }

    #[test]
    fn the_end_is_the_programs_word_or_follows_from_the_last_ten_samples() {
        let mut watch = watch(&[]);
        for step in 0..=20 {
            // The first ten steps take ten seconds each, the others one.
            let second = 100 + if step <= 10 { step * 10 } else { 90 + step };
            watch.read_file(
                format!("{{\"step\":{step},\"steps\":40}}\n").as_bytes(),
                at(second),
            );
        }
        assert_eq!(watch.take_report(at(210)).unwrap().eta_s, Some(20));
        watch.read_file(b"{\"step\":20}\n", at(215));
        assert_eq!(
            watch.take_report(at(215)).unwrap().eta_s,
            Some(15),
            "no sample, and time has passed"
        );
        watch.read_file(b"{\"eta_s\":100}\n", at(216));
        assert_eq!(watch.take_report(at(226)).unwrap().eta_s, Some(90));
        let mut again = super::tests::watch(&[]);
        for (second, fraction) in [(101, 0.9), (102, 0.0), (112, 0.5)] {
            again.read_file(format!("{{\"fraction\":{fraction}}}\n").as_bytes(), at(second));
        }
        assert_eq!(
            again.take_report(at(112)).unwrap().eta_s,
            Some(10),
            "it counts anew"
        );
    }

    #[test]
    fn a_program_that_floods_is_read_in_part_and_its_faults_are_counted() {
        let mut watch = watch(&[("n", "n=([0-9]+)")]);
        let flood: String = (0..100_000)
            .map(|number| format!("{{\"step\":{number}}}\n"))
            .collect();
        watch.read_file(flood.as_bytes(), at(101));
        assert_eq!(watch.take_report(at(101)).unwrap().step, Some(999));
        assert_eq!(watch.ignored_lines(), 99_000);
        watch.read_file(b"nonsense\n{\"step\":7}\n\n", at(102));
        assert_eq!(watch.take_report(at(102)).unwrap().step, Some(7));
        assert_eq!(watch.ignored_lines(), 99_001);
        let printed = "n=1\n".repeat(SEARCHED_BYTES_A_SECOND);
        watch.read_stdout(printed.as_bytes(), at(103));
        assert_eq!(watch.second.searched, SEARCHED_BYTES_A_SECOND);
        watch.read_stdout(b"n=2\n", at(103));
        assert_eq!(metric(&watch.take_report(at(103)).unwrap(), "n"), Some(1.0));
        watch.read_stdout(b"n=3\n", at(104));
        assert_eq!(metric(&watch.take_report(at(104)).unwrap(), "n"), Some(3.0));
        let many: String = (0..200)
            .map(|number| format!("{{\"metrics\":{{\"m{number}\":1}}}}\n"))
            .collect();
        watch.read_file(many.as_bytes(), at(105));
        assert_eq!(watch.take_report(at(105)).unwrap().metrics.len(), MAX_METRICS);
    }

    #[test]
    fn no_metric_is_made_of_two_lines_between_which_output_was_passed_over() {
        let mut watch = watch(&[("n", "n=([0-9]+)")]);
        let filled = format!("{}n=1", "\n".repeat(SEARCHED_BYTES_A_SECOND - 3));
        watch.read_stdout(filled.as_bytes(), at(101));
        watch.read_stdout(b"7\nn=", at(101));
        watch.read_stdout(b"5\n", at(102));
        assert_eq!(watch.take_report(at(102)), None);
        watch.read_stdout(b"n=3\n", at(102));
        assert_eq!(metric(&watch.take_report(at(102)).unwrap(), "n"), Some(3.0));
    }

    #[test]
    fn a_program_that_has_diverged_moves_on_and_its_other_metrics_count() {
        let mut watch = watch(&[("norm", r"norm=([0-9.]+)")]);
        watch.read_file(b"{\"metrics\":{\"loss\":0.5}}\n", at(101));
        watch.read_stdout(b"norm=1.5\n", at(101));
        watch.take_report(at(101)).unwrap();
        for second in 102..110 {
            let before = watch.moves();
            watch.read_file(b"{\"metrics\":{\"loss\":NaN}}\n", at(second));
            assert!(watch.moves() > before, "the same words again are another step");
            let before = watch.moves();
            watch.read_stdout(b"norm=nan\n", at(second));
            assert!(watch.moves() > before);
        }
        watch.read_file(
            b"{\"epoch\":2,\"metrics\":{\"loss\":NaN,\"acc\":0.25}}\n",
            at(110),
        );
        let report = watch.take_report(at(110)).unwrap();
        assert_eq!((report.epoch, metric(&report, "acc")), (Some(2), Some(0.25)));
        assert_eq!(
            metric(&report, "loss"),
            None,
            "the old value is not the newest one"
        );
        let names: Vec<_> = report.non_finite.keys().map(MetricName::as_str).collect();
        assert_eq!(names, ["loss", "norm"]);
        watch.read_file(b"{\"metrics\":{\"loss\":0.5}}\n", at(111));
        let report = watch.take_report(at(111)).unwrap();
        assert_eq!((metric(&report, "loss"), report.non_finite.len()), (Some(0.5), 1));
        assert_eq!(watch.ignored_lines(), 0);
    }

    proptest! {
        #[test]
        fn a_report_stays_within_its_bounds_under_any_input(
            pieces in proptest::collection::vec((any::<bool>(), "([{}\":,a-c0-9.\\-\n ]|NaN|inf){0,80}", 0_i64..5), 0..30),
        ) {
            let mut watch = watch(&[("a", "a([0-9.]+)")]);
            let mut now = 100;
            for (is_file, piece, later) in pieces {
                now += later;
                match is_file {
                    true => watch.read_file(piece.as_bytes(), at(now)),
                    false => watch.read_stdout(piece.as_bytes(), at(now)),
                }
                if let Some(report) = watch.take_report(at(now)) {
                    prop_assert!(report.metrics.len() + report.non_finite.len() <= MAX_METRICS);
                    prop_assert!(report.done_permille.is_none_or(|permille| permille <= 1_000));
                }
            }
        }
    }
}
