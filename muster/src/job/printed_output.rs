//! The output of a job, byte for byte: the part that did not come live is read from the facilitator's file store.

use muster_client::{Client, ClientError};
use muster_process::error::Causes;
use muster_protocol::job::{OutputShortfall, PrintedStream};
use muster_protocol::rest::JobView;
use muster_protocol::wire::executor::LogStream;
use muster_protocol::{Digest, ErrorCode, JobStatus};
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::print;
use muster_terminal::printed_part::PrintedPart;

use crate::facilitator_access::client_failure;
use crate::failure::{Failure, Result};

/// The most characters that the text of a result has. A text of so many may have been cut.
const MAX_TEXT_CHARS: usize = 1_000_000;

/// The bytes from the end of a stored stream among which its last lines are looked for first.
const FIRST_WINDOW: u64 = 1024 * 1024;

/// The reason why a stream was not printed whole.
struct IncompleteStream {
    stream: LogStream,
    /// The bytes from the beginning that were printed.
    printed: u64,
    /// The bytes that the program printed; `None` if nobody knows.
    all: Option<u64>,
    reason: String,
}

/// Prints what is left of both streams of an ended job, behind what was printed live, and compares the digests.
///
/// # Errors
/// A stream cannot be printed whole: the error says how many bytes there are, and why there are no more.
pub(super) async fn print_rest(client: &Client, view: &JobView, live: &mut LiveDisplay) -> Result {
    let stdout = print_stream(client, view, LogStream::Stdout, live).await;
    let stderr = print_stream(client, view, LogStream::Stderr, live).await;
    stdout
        .and(stderr)
        .map_err(|incomplete| incomplete.into_failure(view))
}

/// Prints the last lines of each stream, as far as the facilitator has them.
pub(super) async fn print_tail(client: &Client, view: &JobView, lines: usize) -> Result {
    let stdout = read_tail(client, view, LogStream::Stdout, lines).await?;
    print::bytes(&stdout);
    let stderr = read_tail(client, view, LogStream::Stderr, lines).await?;
    print::bytes_beside(&stderr);
    Ok(())
}

/// Prints a stream of an ended job from a byte on, as far as the facilitator has it.
pub(super) async fn print_from(client: &Client, view: &JobView, stream: LogStream, from: u64) -> Result {
    let put = |bytes: &[u8]| match stream {
        LogStream::Stderr => print::bytes_beside(bytes),
        LogStream::Stdout | LogStream::Unknown => print::bytes(bytes),
    };
    let text = text_of(view, stream);
    let printed = printed_stream(view, stream);
    let own = printed.and_then(|printed| printed.within(text));
    match (own, printed.and_then(|printed| printed.stored)) {
        (None, Some(stored)) => client
            .read_output(view.uuid, stream, from, stored.bytes, put)
            .await
            .map_err(client_failure),
        (own, _) => {
            let bytes = own.unwrap_or(text.as_bytes());
            put(bytes
                .get(usize::try_from(from).unwrap_or(usize::MAX)..)
                .unwrap_or_default());
            Ok(())
        }
    }
}

async fn read_tail(client: &Client, view: &JobView, stream: LogStream, lines: usize) -> Result<Vec<u8>> {
    let text = text_of(view, stream).as_bytes();
    let printed = printed_stream(view, stream);
    let stored = printed.filter(|printed| printed.within(text_of(view, stream)).is_none());
    let Some(stored) = stored.and_then(|printed| printed.stored) else {
        let own = printed.and_then(|printed| printed.within(text_of(view, stream)));
        return Ok(last_lines(own.unwrap_or(text), lines).to_vec());
    };
    let mut window = FIRST_WINDOW;
    loop {
        let from = stored.bytes.saturating_sub(window);
        let mut end = Vec::new();
        let put = |bytes: &[u8]| end.extend_from_slice(bytes);
        client
            .read_output(view.uuid, stream, from, stored.bytes, put)
            .await
            .map_err(client_failure)?;
        let found = last_lines(&end, lines);
        // A line that begins before the window would be cut.
        if from == 0 || found.len() < end.len() {
            return Ok(found.to_vec());
        }
        window = window.saturating_mul(4);
    }
}

/// The last lines of a text; the last one need not have an end.
fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let whole = text.strip_suffix(b"\n").unwrap_or(text);
    if lines == 0 {
        return &[];
    }
    let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let begin = ends
        .rev()
        .nth(lines - 1)
        .map_or(0, |(at, _)| at.saturating_add(1));
    text.get(begin..).unwrap_or_default()
}

const fn text_of(view: &JobView, stream: LogStream) -> &String {
    match stream {
        LogStream::Stdout | LogStream::Unknown => &view.stdout,
        LogStream::Stderr => &view.stderr,
    }
}

async fn print_stream(
    client: &Client,
    view: &JobView,
    stream: LogStream,
    live: &mut LiveDisplay,
) -> std::result::Result<(), IncompleteStream> {
    let text = text_of(view, stream);
    if live.skips_gaps(stream) {
        // A person saw the newest of it, and is told how to get all of it.
        return Ok(());
    }
    let Some(printed) = printed_stream(view, stream) else {
        return match print_text(text, stream, live) {
            // The job says itself that it failed, and its text is only what came live.
            Err(_) if matches!(view.last_status(), JobStatus::HordeFailed | JobStatus::Rejected) => Ok(()),
            ended => ended,
        };
    };
    let from = live.part(stream).end();
    let result = match (printed.within(text), printed.stored) {
        (Some(bytes), _) => {
            let rest = bytes.get(usize::try_from(from).unwrap_or(usize::MAX)..);
            live.print_bytes(stream, rest.unwrap_or_default());
            Ok(())
        }
        (None, Some(stored)) => {
            let put = |bytes: &[u8]| live.print_bytes(stream, bytes);
            client
                .read_output(view.uuid, stream, from, stored.bytes, put)
                .await
                .map_err(|error| unread(&error))
        }
        (None, None) => Err(reason(printed).to_owned()),
    };
    let part = live.part(stream);
    let judged = result.and_then(|()| judge(part, printed));
    judged.map_err(|reason| IncompleteStream {
        stream,
        printed: part.end(),
        all: Some(printed.bytes),
        reason,
    })?;
    if let Some(notes) = text.get(usize::try_from(printed.bytes).unwrap_or(usize::MAX)..)
        && printed.within(text).is_some()
        && !notes.is_empty()
    {
        // Lines of the executor's own stand behind the program's.
        live.print_line(notes.trim_end());
    }
    Ok(())
}

/// Prints the rest of a text whose executor does not tell the length and the digest of the stream.
fn print_text(
    text: &str,
    stream: LogStream,
    live: &mut LiveDisplay,
) -> std::result::Result<(), IncompleteStream> {
    let is_whole = !text.contains(char::REPLACEMENT_CHARACTER) && text.chars().count() < MAX_TEXT_CHARS;
    let part = live.part(stream);
    let begun = usize::try_from(part.end())
        .ok()
        .and_then(|end| text.split_at_checked(end));
    match begun {
        Some((begun, rest)) if is_whole && Digest::of(begun.as_bytes()) == part.digest() => {
            live.print_bytes(stream, rest.as_bytes());
            Ok(())
        }
        Some(_) | None => Err(IncompleteStream {
            stream,
            printed: part.end(),
            all: None,
            reason:
                "the job's executor keeps only a text of it, which is cut or holds bytes that are no text"
                    .to_owned(),
        }),
    }
}

/// The executor's statement about a stream; `None` if it states nothing.
fn printed_stream(view: &JobView, stream: LogStream) -> Option<PrintedStream> {
    let printed = view.completion.as_ref()?.printed.as_ref()?;
    Some(match stream {
        LogStream::Stdout | LogStream::Unknown => printed.stdout,
        LogStream::Stderr => printed.stderr,
    })
}

/// Whether the printed bytes are all that the program printed.
fn judge(part: &PrintedPart, printed: PrintedStream) -> std::result::Result<(), String> {
    let is_compared = part.end() == printed.collected();
    if is_compared && printed.sha256.is_some_and(|sha256| sha256 != part.digest()) {
        return Err(
            "the program was started again after some of it was printed, and then printed something else; \
             `muster job logs` has it"
                .to_owned(),
        );
    }
    if is_compared && printed.is_whole() {
        return Ok(());
    }
    Err(reason(printed).to_owned())
}

fn reason(printed: PrintedStream) -> &'static str {
    printed.shortfall.unwrap_or(OutputShortfall::Unknown).reason()
}

fn unread(error: &ClientError) -> String {
    if let ClientError::Refused { status, .. } = error
        && status.as_u16() == 404
    {
        return "it is not in the facilitator's file store any more".to_owned();
    }
    format!("the facilitator's file store cannot be read: {}", Causes(error))
}

impl IncompleteStream {
    fn into_failure(self, view: &JobView) -> Failure {
        let Self {
            stream,
            printed,
            all,
            reason,
        } = self;
        let name = match stream {
            LogStream::Stdout | LogStream::Unknown => "standard output",
            LogStream::Stderr => "standard error",
        };
        let of = all.map_or_else(|| "an unknown number".to_owned(), |all| format!("{all}"));
        Failure::incomplete(
            ErrorCode::OutputIncomplete,
            anyhow::anyhow!(
                "the {name} of job {} is not whole: output incomplete from byte {printed} of {of}, because {reason}",
                view.uuid
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_of_a_text_are_whole_lines() {
        for (text, lines, expected) in [
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\n\n", 1, "\n"),
            ("a\nb\n", 5, "a\nb\n"),
            ("a\nb\n", 0, ""),
            ("", 3, ""),
        ] {
            assert_eq!(
                last_lines(text.as_bytes(), lines),
                expected.as_bytes(),
                "{text:?} {lines}"
            );
        }
    }
}
