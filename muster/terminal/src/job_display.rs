//! A job while it runs, as a person watches it: its steps, bars for long operations, and its output. Only the output
//! goes to stdout.

use std::cell::RefCell;
use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use muster_client::{News, TransferProgress};
use muster_curves::describe_report;
use muster_protocol::Timestamp;
use muster_protocol::job::ProgramReport;
use muster_protocol::rest::{JobView, LogEvent, ProgressEvent, StatusEntry};
use muster_protocol::wire::executor::{LogStream, ProgressOf};

use crate::open_line::OpenLine;
use crate::printed_part::PrintedPart;
use crate::{job_text, print};

/// Between two frames of a spinner.
const TICK: Duration = Duration::from_millis(120);

/// How much of one stream has been printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PrintedOutput {
    last: Option<PrintedPiece>,
    /// The programs that have begun to print here, one after another.
    programs: u32,
}

/// A piece of output that was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PrintedPiece {
    start: u64,
    /// When the facilitator took it in: one that is sent again has the same time.
    at: Timestamp,
}

/// The position of a piece of output relative to the printed output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogPosition {
    Next,
    /// It was sent again after a reconnection.
    Again,
    /// The job's program was started again, on another miner.
    Anew,
}

/// The parts of a running job that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Its steps, its progress, and the output of its program.
    All,
    /// The output of its program, and errors.
    Program,
    /// Nothing: only the end is wanted.
    Nothing,
}

/// The display on the terminal.
pub struct LiveDisplay {
    begun: Timestamp,
    bars: MultiProgress,
    /// The spinner with the last status.
    stage: Option<ProgressBar>,
    /// The bar of what is under way.
    under_way: Option<(ProgressOf, ProgressBar)>,
    /// How far the image was in the last line about it, in tenths, where there is no terminal for a bar.
    image_said: Option<u64>,
    shown: Shown,
    stdout: StreamDisplay,
    stderr: StreamDisplay,
    /// The program's last line where it prints beside our own lines.
    line: RefCell<OpenLine>,
    /// Both streams go to the terminal, so that a line of either has our own lines below it.
    is_mixed: bool,
    /// A part of the output alone was asked for, so that what is missing is no news.
    is_part: bool,
}

/// One stream of the program, as it is shown.
#[derive(Default)]
struct StreamDisplay {
    seen: PrintedOutput,
    /// The part that was printed without a gap.
    part: PrintedPart,
    /// It goes to a terminal, or to somebody who follows: the newest of it is wanted, also behind a gap.
    shows_newest: bool,
}

// === impl PrintedOutput ===

impl PrintedOutput {
    fn takes(&mut self, log: &LogEvent) -> LogPosition {
        let place = match self.last {
            Some(last) if log.offset <= last.start && log.at <= last.at => return LogPosition::Again,
            Some(last) if log.offset <= last.start => {
                self.programs = self.programs.saturating_add(1);
                LogPosition::Anew
            }
            Some(_) => LogPosition::Next,
            None => {
                self.programs = 1;
                LogPosition::Next
            }
        };
        self.last = Some(PrintedPiece {
            start: log.offset,
            at: log.at,
        });
        place
    }
}

// === impl LiveDisplay ===

impl LiveDisplay {
    /// Times count from `begun`.
    pub fn new(begun: Timestamp, quiet: bool) -> Self {
        let shown = if quiet { Shown::Nothing } else { Shown::All };
        let is_mixed = std::io::stderr().is_terminal() && std::io::stdout().is_terminal();
        Self {
            begun,
            bars: MultiProgress::with_draw_target(draw_target(shown)),
            stage: None,
            under_way: None,
            image_said: None,
            shown,
            line: RefCell::default(),
            is_mixed,
            is_part: false,
            stdout: StreamDisplay {
                shows_newest: std::io::stdout().is_terminal(),
                ..StreamDisplay::default()
            },
            stderr: StreamDisplay {
                shows_newest: std::io::stderr().is_terminal(),
                ..StreamDisplay::default()
            },
        }
    }

    /// Whether bars are drawn, but for the time of a program's open line.
    fn has_bars(&self) -> bool {
        !draw_target(self.shown).is_hidden()
    }

    /// The part of a stream that was printed without a gap.
    pub const fn part(&self, stream: LogStream) -> &PrintedPart {
        match stream {
            LogStream::Stderr => &self.stderr.part,
            LogStream::Stdout | LogStream::Unknown => &self.stdout.part,
        }
    }

    /// The same without the job's steps and its progress: what the program prints, and errors.
    #[must_use]
    pub fn without_steps(mut self) -> Self {
        if self.shown == Shown::All {
            self.shown = Shown::Program;
            self.bars.set_draw_target(draw_target(self.shown));
        }
        self
    }

    /// The same for somebody who follows a job: what a program prints now is shown wherever it goes, also behind a gap.
    #[must_use]
    pub fn following(mut self) -> Self {
        self.stdout.shows_newest = true;
        self.stderr.shows_newest = true;
        self
    }

    /// The same for somebody who asked for a part of the output.
    #[must_use]
    pub fn of_a_part(mut self) -> Self {
        self.is_part = true;
        self
    }

    /// Whether a stream was shown with a gap, so that nothing can follow it there.
    pub const fn skips_gaps(&self, stream: LogStream) -> bool {
        let shown = match stream {
            LogStream::Stderr => &self.stderr,
            LogStream::Stdout | LogStream::Unknown => &self.stdout,
        };
        shown.shows_newest && shown.part.is_broken()
    }

    /// Prints bytes of a stream that follow what was printed of it.
    pub fn print_bytes(&mut self, stream: LogStream, bytes: &[u8]) {
        let is_stderr = stream == LogStream::Stderr;
        let shown = if is_stderr {
            &mut self.stderr
        } else {
            &mut self.stdout
        };
        shown.part.add(bytes);
        self.put(is_stderr, bytes);
    }

    /// A bar for a transfer of a file of this machine.
    pub fn transfer(&self, name: &str) -> impl FnMut(TransferProgress) + use<> {
        let bar = self.bars.add(bytes_bar(name.to_owned()));
        move |told| {
            bar.set_length(told.total);
            bar.set_position(told.done);
            if told.done >= told.total {
                bar.finish_and_clear();
            }
        }
    }

    /// A line about the job, below the program's last line.
    pub fn print_line(&self, text: &str) {
        match self.shown {
            Shown::All => self.print_error(text),
            Shown::Program | Shown::Nothing => {}
        }
    }

    /// A line that is shown even if nothing but the program's output is.
    fn print_error(&self, text: &str) {
        if let Some(line) = self.line.borrow_mut().say(text.to_owned()) {
            self.bars.suspend(|| print::problem(format_args!("{line}")));
        }
    }

    /// Shows something new.
    pub fn news(&mut self, news: News) {
        match news {
            News::Status(entry) => self.status(&entry),
            News::Log(log) => self.log(&log),
            News::Progress(progress) => self.progress(&progress),
            News::Queued(place) => self.print_line(&job_text::place(&place)),
            News::Metrics(state) => self.metrics(&state.report),
        }
    }

    /// The newest report beside the stage, and as a line of its own where no bar can be seen.
    fn metrics(&mut self, report: &ProgramReport) {
        let text = describe_report(report);
        match &self.stage {
            Some(stage) if self.has_bars() => stage.set_message(text),
            Some(_) | None => self.print_line(&format!("{:>12}{text}", "")),
        }
    }

    fn status(&mut self, entry: &StatusEntry) {
        if let Some((_, bar)) = self.under_way.take() {
            bar.finish_and_clear();
        }
        self.print_line(&job_text::step(entry, self.begun));
        if entry.status.is_terminal() {
            self.clear();
            return;
        }
        let stage = self.stage.get_or_insert_with(|| {
            let bar = self.bars.add(ProgressBar::new_spinner());
            bar.enable_steady_tick(TICK);
            bar
        });
        stage.set_message(entry.status.state().to_string());
    }

    fn progress(&mut self, progress: &ProgressEvent) {
        let same = self
            .under_way
            .as_ref()
            .is_some_and(|(of, _)| *of == progress.stage);
        if !same {
            let name = progress.stage.to_string().replace('_', " ");
            let bar = if progress.stage == ProgressOf::Execution {
                seconds_bar(name)
            } else {
                bytes_bar(name)
            };
            if let Some((_, old)) = self.under_way.replace((progress.stage, self.bars.add(bar))) {
                old.finish_and_clear();
            }
        }
        if let Some((_, bar)) = &self.under_way {
            if let Some(total) = progress.total {
                bar.set_length(total);
            }
            bar.set_position(progress.done);
            if let Some(layers) = progress.layers {
                bar.set_message(format!("image, {} of {} layers", layers.done, layers.total));
            }
        }
        if progress.stage == ProgressOf::ImagePull && !self.has_bars() {
            self.show_image(progress);
        }
    }

    /// A line about the image where no bar can be seen: one for each tenth of it, and one before its size is known.
    fn show_image(&mut self, progress: &ProgressEvent) {
        let tenths = progress
            .total
            .and_then(|total| progress.done.saturating_mul(10).checked_div(total));
        let reached = tenths.unwrap_or_default();
        if self.image_said.is_none_or(|said| said < reached) {
            self.image_said = Some(reached);
            self.print_line(&job_text::image_progress(progress));
        }
    }

    fn log(&mut self, log: &LogEvent) {
        if self.shown == Shown::Nothing {
            return;
        }
        let beside = log.stream == LogStream::Stderr;
        let (shown, other) = if beside {
            (&mut self.stderr, &self.stdout)
        } else {
            (&mut self.stdout, &self.stderr)
        };
        let position = shown.seen.takes(log);
        // Each program is reported once, by the stream that it prints to first.
        let is_news = position == LogPosition::Anew && shown.seen.programs > other.seen.programs;
        let text = shown.take(log, position).to_owned();
        if is_news {
            self.print_line(
                "  the program was started again on another miner: the result has what it prints from here on",
            );
        }
        self.put(beside, text.as_bytes());
    }

    fn put(&self, beside: bool, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let print = || {
            if beside {
                print::bytes_beside(bytes);
            } else {
                print::bytes(bytes);
            }
        };
        if !beside && !self.is_mixed {
            return self.bars.suspend(print);
        }
        let mut line = self.line.borrow_mut();
        let was_open = line.is_open();
        let held = line.printed(bytes);
        match (was_open, line.is_open()) {
            (false, false) => self.bars.suspend(print),
            // A bar would be drawn over the line, and wipe it.
            (false, true) => {
                // A terminal that cannot be cleared shows the bar above the line.
                let _ = self.bars.clear();
                self.bars.set_draw_target(ProgressDrawTarget::hidden());
                print();
            }
            (true, true) => print(),
            (true, false) => {
                print();
                print_lines(&held);
                self.bars.set_draw_target(draw_target(self.shown));
            }
        }
    }

    /// Removes every bar.
    pub fn clear(&mut self) {
        if let Some((_, bar)) = self.under_way.take() {
            bar.finish_and_clear();
        }
        if let Some(stage) = self.stage.take() {
            stage.finish_and_clear();
        }
    }

    /// The end, behind what the program printed: what failed and whose fault it was.
    pub fn finish(&mut self, view: &JobView) {
        self.clear();
        if self.shown == Shown::Nothing {
            return;
        }
        print_lines(&self.line.borrow_mut().finish());
        let has_gaps = self.skips_gaps(LogStream::Stdout) || self.skips_gaps(LogStream::Stderr);
        if has_gaps && !self.is_part {
            let id = view.uuid;
            self.print_line(&format!(
                "  some of what it printed did not come live; `muster job logs {id}` has all of it"
            ));
        }
        for path in view.artifacts.keys() {
            self.print_line(&format!("  artifact {path}"));
        }
        if let Some(reason) = job_text::failure(view) {
            self.print_error(&format!("job {}: {reason}", view.uuid));
        }
    }
}

impl StreamDisplay {
    /// The text that is printed for a piece.
    fn take<'a>(&mut self, log: &'a LogEvent, position: LogPosition) -> &'a str {
        if !self.shows_newest {
            return self.part.take(log);
        }
        match position {
            LogPosition::Again => return "",
            LogPosition::Anew if log.offset == 0 => self.part = PrintedPart::default(),
            LogPosition::Anew | LogPosition::Next => {}
        }
        self.part.take(log);
        &log.text
    }
}

fn print_lines(lines: &[String]) {
    for line in lines {
        print::problem(format_args!("{line}"));
    }
}

fn draw_target(shown: Shown) -> ProgressDrawTarget {
    match shown {
        Shown::All if std::io::stderr().is_terminal() => ProgressDrawTarget::stderr(),
        Shown::All | Shown::Program | Shown::Nothing => ProgressDrawTarget::hidden(),
    }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    // A template that cannot be read is a defect that a test finds; the bar is drawn in its usual style then.
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

const BYTES: &str = "  {msg:20} {wide_bar} {bytes:>10} of {total_bytes:>10} {eta:>5}";
const SECONDS: &str = "  {msg:20} {wide_bar} {pos} s of {len} s";

fn bytes_bar(name: String) -> ProgressBar {
    styled(ProgressBar::new(0), BYTES).with_message(name)
}

fn seconds_bar(name: String) -> ProgressBar {
    styled(ProgressBar::new(0), SECONDS).with_message(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_at(second: i64, offset: u64, text: &str) -> LogEvent {
        LogEvent {
            stream: LogStream::Stdout,
            text: text.to_owned(),
            at: Timestamp::from_secs(second),
            offset,
        }
    }

    fn log(offset: u64, text: &str) -> LogEvent {
        log_at(0, offset, text)
    }

    #[test]
    fn every_piece_is_printed_once_and_the_rest_at_the_end() {
        let mut printed = PrintedOutput::default();
        assert_eq!(printed.takes(&log(0, "one ")), LogPosition::Next);
        assert_eq!(printed.takes(&log(4, "two ")), LogPosition::Next);
        assert_eq!(printed.takes(&log(4, "two ")), LogPosition::Again);
        assert_eq!(printed.takes(&log(10, "four")), LogPosition::Next);
    }

    #[test]
    fn file_gets_no_byte_behind_a_gap_and_none_twice_and_a_terminal_gets_the_newest() {
        let pieces = [
            log(0, "one "),
            log(8, "three "),
            log_at(9, 0, "one "),
            log_at(9, 4, "two "),
        ];
        for (shows_newest, expected) in [(false, "one "), (true, "one three one two ")] {
            let mut shown = StreamDisplay {
                shows_newest,
                ..StreamDisplay::default()
            };
            let mut text = String::new();
            for piece in &pieces {
                let position = shown.seen.takes(piece);
                text.push_str(shown.take(piece, position));
            }
            assert_eq!(text, expected);
            assert_eq!(shown.part.is_broken(), !shows_newest);
            assert_eq!(shown.part.end(), if shows_newest { 8 } else { 4 });
        }
    }

    #[test]
    fn another_attempts_output_begins_anew() {
        let mut printed = PrintedOutput::default();
        assert_eq!(printed.takes(&log(0, "one two ")), LogPosition::Next);
        assert_eq!(printed.takes(&log_at(9, 0, "one ")), LogPosition::Anew);
        assert_eq!(printed.takes(&log_at(10, 4, "two ")), LogPosition::Next);
        assert_eq!(printed.programs, 2);
    }

    #[test]
    fn the_templates_can_be_read() {
        for template in [BYTES, SECONDS] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
