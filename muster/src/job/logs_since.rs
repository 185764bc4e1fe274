//! `muster job logs` of a job that runs, and with `--since`: the output that the facilitator received from a time on.
//!
//! The facilitator keeps the times of the newest pieces of output that came while the program ran. The output that came
//! with the job's end has the time of the end.

use std::process::ExitCode;

use muster_client::{Client, News};
use muster_process::{SharedClock, shutdown};
use muster_protocol::Timestamp;
use muster_protocol::rest::{JobView, LogEvent};
use muster_protocol::wire::executor::LogStream;
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::print;
use tokio::sync::Notify;

use super::VERY_LONG;
use super::exit_code::{EXIT_INTERRUPTED, exit_code};
use super::printed_output::print_from;
use crate::cli::user::JobLogs;
use crate::facilitator_access::client_failure;
use crate::failure::Result;

/// The part of one stream that came since a time, as far as its pieces show it.
#[derive(Debug, Default, PartialEq, Eq)]
struct StreamSince {
    /// The last piece, and where what follows it begins.
    last: Option<(u64, u64)>,
    /// Where the first piece since the time begins.
    first: Option<u64>,
    /// Whether older pieces are gone that may have come since the time.
    is_cut: bool,
}

#[derive(Debug, Default)]
struct OutputSince {
    stdout: StreamSince,
    stderr: StreamSince,
}

/// Prints the output since `begin`: with `--follow` until the job has ended, otherwise up to now.
pub(super) async fn logs_since(
    client: &Client,
    view: &JobView,
    begin: Timestamp,
    args: &JobLogs,
    clock: &SharedClock,
) -> Result<ExitCode> {
    let has_ended = view.last_status().is_terminal();
    let mut live = LiveDisplay::new(view.created_at, false).following();
    if !args.follow || has_ended {
        live = live.without_steps();
    }
    if args.tail.is_some() || args.since.is_some() {
        live = live.of_a_part();
    }
    // The facilitator sends the output before the statuses that it has.
    let newest = view.status_history.last();
    let newest = newest.map(|entry| (entry.status, entry.created_at));
    let caught_up = Notify::new();
    let mut since = OutputSince::default();
    let mut held = args.tail.map(|lines| (lines, Vec::new()));
    let tell = |news: News| {
        if let News::Log(log) = &news {
            since.of(log.stream).note(log, begin);
            if let Some((_, pieces)) = &mut held {
                pieces.push(log.clone());
                return;
            }
        }
        if let News::Status(entry) = &news
            && newest == Some((entry.status, entry.created_at))
        {
            caught_up.notify_one();
            if let Some((lines, pieces)) = held.take() {
                for piece in last_pieces(pieces, lines) {
                    live.news(News::Log(piece));
                }
            }
        }
        if !has_ended && time_of(&news).is_none_or(|at| at >= begin) {
            live.news(news);
        }
    };
    let deadline = clock.now().plus(VERY_LONG);
    let ended = tokio::select! {
        ended = client.follow(view.uuid, deadline, tell) => Some(ended.map_err(client_failure)?),
        () = caught_up.notified(), if !args.follow && !has_ended => None,
        signal = shutdown::wait_for_signal() => {
            signal?;
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
    };
    live.clear();
    if let Some(ended) = ended.as_ref().filter(|ended| came_since(ended, begin)) {
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            print_from(client, ended, stream, since.of(stream).rest(has_ended)).await?;
        }
    }
    if since.stdout.is_cut || since.stderr.is_cut {
        print::problem(format_args!(
            "the facilitator keeps the times of a job's newest output alone: what came before it is left out, and \
             `muster job logs {}` prints all of it",
            view.uuid
        ));
    }
    Ok(match ended {
        Some(ended) if args.follow => {
            live.finish(&ended);
            ExitCode::from(exit_code(&ended))
        }
        Some(_) | None => ExitCode::SUCCESS,
    })
}

/// The pieces with the last lines of each stream; the last line need not have an end.
fn last_pieces(mut pieces: Vec<LogEvent>, lines: usize) -> Vec<LogEvent> {
    for stream in [LogStream::Stdout, LogStream::Stderr] {
        let of_stream = pieces.iter_mut().filter(|piece| piece.stream == stream);
        let (mut left, mut is_end) = (lines, true);
        for piece in of_stream.rev() {
            let text = match is_end {
                true => piece.text.strip_suffix('\n').unwrap_or(&piece.text),
                false => &piece.text,
            };
            is_end = is_end && piece.text.is_empty();
            let before = text.rmatch_indices('\n').nth(left.saturating_sub(1));
            let begin = match before {
                _ if left == 0 => piece.text.len(),
                Some((at, _)) => at.saturating_add(1),
                None => 0,
            };
            left = match before {
                Some(_) => 0,
                None => left.saturating_sub(text.matches('\n').count()),
            };
            piece.text.drain(..begin);
            piece.offset = piece.offset.saturating_add(begin as u64);
        }
    }
    pieces.retain(|piece| !piece.text.is_empty());
    pieces
}

/// Whether the end of a job, with the rest of its output, came since a time.
fn came_since(ended: &JobView, begin: Timestamp) -> bool {
    let last = ended.status_history.last();
    last.is_some_and(|entry| entry.created_at >= begin)
}

/// When the facilitator learned of something; `None` where it does not say.
fn time_of(news: &News) -> Option<Timestamp> {
    match news {
        News::Status(entry) => Some(entry.created_at),
        News::Log(log) => Some(log.at),
        News::Metrics(state) => Some(state.at),
        News::Progress(_) | News::Queued(_) => None,
    }
}

impl OutputSince {
    const fn of(&mut self, stream: LogStream) -> &mut StreamSince {
        match stream {
            LogStream::Stderr => &mut self.stderr,
            LogStream::Stdout | LogStream::Unknown => &mut self.stdout,
        }
    }
}

impl StreamSince {
    fn note(&mut self, log: &LogEvent, begin: Timestamp) {
        if self.last.is_some_and(|(start, _)| log.offset <= start) {
            // Another attempt prints from the beginning.
            *self = Self::default();
        }
        if log.at >= begin && self.first.is_none() {
            self.is_cut = self.last.is_none() && log.offset > 0;
            self.first = Some(log.offset);
        }
        // The length of a piece is not known where some of its bytes are no text.
        let end = match log.text.contains(char::REPLACEMENT_CHARACTER) {
            true => log.offset,
            false => log.offset.saturating_add(log.text.len() as u64),
        };
        self.last = Some((log.offset, end));
    }

    /// Where the output begins that is still to be printed of an ended job: all of it since the time, or the part that
    /// did not come while the job was followed.
    fn rest(&self, has_ended: bool) -> u64 {
        let behind = self.last.map_or(0, |(_, end)| end);
        match self.first.filter(|_| has_ended) {
            Some(first) => first,
            None => behind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, second: i64, text: &str) -> LogEvent {
        LogEvent {
            stream: LogStream::Stdout,
            text: text.to_owned(),
            at: Timestamp::from_secs(second),
            offset,
        }
    }

    /// Of these pieces: the rest since second 10 of a job that had ended, and of one that was followed, and whether
    /// older pieces are gone.
    fn noted(pieces: &[LogEvent]) -> (u64, u64, bool) {
        let mut since = StreamSince::default();
        for piece in pieces {
            since.note(piece, Timestamp::from_secs(10));
        }
        (since.rest(true), since.rest(false), since.is_cut)
    }

    #[test]
    fn output_since_a_time_begins_with_the_first_piece_of_it_or_behind_the_last_one() {
        assert_eq!(noted(&[]), (0, 0, false));
        assert_eq!(noted(&[piece(0, 11, "abc")]), (0, 3, false));
        assert_eq!(noted(&[piece(0, 9, "abc")]), (3, 3, false));
        assert_eq!(noted(&[piece(0, 9, "abc"), piece(3, 10, "de")]), (3, 5, false));
        assert_eq!(noted(&[piece(0, 9, "a\u{fffd}")]), (0, 0, false));
    }

    #[test]
    fn output_is_cut_where_its_oldest_piece_is_wanted_and_not_the_first() {
        assert_eq!(noted(&[piece(7, 9, "x"), piece(8, 11, "y")]), (8, 9, false));
        assert_eq!(noted(&[piece(7, 10, "x")]), (7, 8, true));
    }

    #[test]
    fn the_last_lines_are_cut_out_of_the_pieces_in_which_they_came() {
        let pieces = [piece(0, 1, "a\nb"), piece(3, 2, "c\nd\n"), piece(7, 3, "e")];
        for (lines, expected) in [
            (0, vec![]),
            (1, vec![(7, "e")]),
            (2, vec![(5, "d\n"), (7, "e")]),
            (3, vec![(2, "b"), (3, "c\nd\n"), (7, "e")]),
            (9, vec![(0, "a\nb"), (3, "c\nd\n"), (7, "e")]),
        ] {
            let left = last_pieces(pieces.to_vec(), lines);
            let left: Vec<_> = left
                .iter()
                .map(|piece| (piece.offset, piece.text.as_str()))
                .collect();
            assert_eq!(left, expected, "{lines}");
        }
        let ended = [piece(0, 1, "a\nb\n")];
        assert_eq!(last_pieces(ended.to_vec(), 1)[0].text, "b\n");
    }

    #[test]
    fn another_attempt_begins_anew() {
        let pieces = [piece(0, 11, "abc"), piece(3, 12, "d"), piece(0, 13, "a")];
        assert_eq!(noted(&pieces), (0, 1, false));
    }
}
