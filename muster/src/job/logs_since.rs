//! `muster job logs --since`: the output that the facilitator received from a time on.

use std::process::ExitCode;

use muster_client::{Client, News};
use muster_process::{SharedClock, shutdown};
use muster_protocol::Timestamp;
use muster_protocol::rest::{JobView, LogEvent};
use muster_protocol::wire::executor::LogStream;
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::print;
use tokio::sync::Notify;

use super::exit_code::{EXIT_INTERRUPTED, exit_code};
use super::{VERY_LONG, as_json};
use crate::cli::user::JobLogs;
use crate::facilitator_access::client_failure;
use crate::failure::Result;

/// The pieces of output that come before a time, of which the facilitator keeps the newest only.
#[derive(Debug, Default)]
struct FirstPieces {
    stdout: bool,
    stderr: bool,
    /// Whether a stream begins with a piece of its middle that is wanted: what comes before it may be wanted, too.
    is_cut: bool,
}

/// Prints the output since `begin`: with `--follow` until the job has ended, otherwise up to now.
pub(super) async fn logs_since(
    client: &Client,
    view: &JobView,
    begin: Timestamp,
    args: &JobLogs,
    clock: &SharedClock,
) -> Result<ExitCode> {
    let mut live = LiveDisplay::new(view.created_at, args.json).following();
    if !args.follow {
        live = live.without_steps();
    }
    // The facilitator sends the output before the statuses that it has.
    let newest = view.status_history.last();
    let newest = newest.map(|entry| (entry.status, entry.created_at));
    let caught_up = Notify::new();
    let mut first = FirstPieces::default();
    let tell = |news: News| {
        if let News::Log(log) = &news {
            first.note(log, begin);
        }
        if let News::Status(entry) = &news
            && newest == Some((entry.status, entry.created_at))
        {
            caught_up.notify_one();
        }
        if time_of(&news).is_some_and(|at| at < begin) {
            return;
        }
        if args.json {
            print::line(format_args!("{}", as_json(&news)));
        } else {
            live.news(news);
        }
    };
    let deadline = clock.now().plus(VERY_LONG);
    let ended = tokio::select! {
        ended = client.follow(view.uuid, deadline, tell) => Some(ended.map_err(client_failure)?),
        () = caught_up.notified(), if !args.follow => None,
        signal = shutdown::wait_for_signal() => {
            signal?;
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
    };
    live.clear();
    if first.is_cut {
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

/// When the facilitator learned of something; `None` where it does not say.
fn time_of(news: &News) -> Option<Timestamp> {
    match news {
        News::Status(entry) => Some(entry.created_at),
        News::Log(log) => Some(log.at),
        News::Metrics(state) => Some(state.at),
        News::Progress(_) | News::Queued(_) => None,
    }
}

impl FirstPieces {
    fn note(&mut self, log: &LogEvent, begin: Timestamp) {
        let seen = match log.stream {
            LogStream::Stderr => &mut self.stderr,
            LogStream::Stdout | LogStream::Unknown => &mut self.stdout,
        };
        if !*seen {
            *seen = true;
            self.is_cut |= log.offset > 0 && log.at >= begin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_where_its_oldest_piece_is_wanted_and_not_the_first() {
        let piece = |stream, offset, second| LogEvent {
            stream,
            text: "x".to_owned(),
            at: Timestamp::from_secs(second),
            offset,
        };
        let begin = Timestamp::from_secs(10);
        for (pieces, is_cut) in [
            (vec![piece(LogStream::Stdout, 0, 11)], false),
            (
                vec![piece(LogStream::Stdout, 7, 9), piece(LogStream::Stdout, 8, 11)],
                false,
            ),
            (vec![piece(LogStream::Stdout, 7, 10)], true),
            (
                vec![piece(LogStream::Stdout, 0, 11), piece(LogStream::Stderr, 7, 12)],
                true,
            ),
        ] {
            let mut first = FirstPieces::default();
            for piece in &pieces {
                first.note(piece, begin);
            }
            assert_eq!(first.is_cut, is_cut, "{pieces:?}");
        }
    }
}
