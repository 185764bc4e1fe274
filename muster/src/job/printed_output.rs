//! The output of a job, byte for byte: the part that did not come live is read from the facilitator's file store.

use muster_client::{Client, ClientError};
use muster_process::error::Causes;
use muster_protocol::job::{OutputShortfall, PrintedStream};
use muster_protocol::rest::JobView;
use muster_protocol::wire::executor::LogStream;
use muster_protocol::{Digest, ErrorCode, JobStatus};
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::printed_part::PrintedPart;

use crate::failure::{Failure, Result};

/// The most characters that the text of a result has. A text of so many may have been cut.
const MAX_TEXT_CHARS: usize = 1_000_000;

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

async fn print_stream(
    client: &Client,
    view: &JobView,
    stream: LogStream,
    live: &mut LiveDisplay,
) -> std::result::Result<(), IncompleteStream> {
    let text = match stream {
        LogStream::Stdout | LogStream::Unknown => &view.stdout,
        LogStream::Stderr => &view.stderr,
    };
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
