//! `muster chat`: a conversation with a model in the terminal, each answer with the check of its proof.

use std::io::BufRead as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use muster_client::Client;
use muster_gateway::saved_proof::ProofRecord;
use muster_gateway::waiting_comment::{WaitingPlace, read_waiting_comment};
use muster_openai::{BodyKind, JsonReader};
use muster_process::SharedClock;
use muster_protocol::ErrorCode;
use muster_response_proof::comment::{CommentScanner, MAX_LINE, StreamPart};
use muster_terminal::print;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::Chat;
use crate::facilitator_access::{self, client_failure};
use crate::failure::{Failure, Result};
use crate::proof;
use crate::proven_exchange::{MAX_ANSWER, ProvenExchange};
use crate::served_models::choose_model;

const PATH: &str = "/v1/chat/completions";

/// One answer, for machines.
#[derive(Debug, Serialize)]
pub(crate) struct ChatAnswer {
    /// The model's text.
    pub(crate) text: String,
    /// `proven`, or the reason for which it is not.
    pub(crate) verdict: String,
    /// The record with which it can be checked again.
    pub(crate) record: ProofRecord,
}

/// Runs the command.
pub(crate) async fn run(args: Chat, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?
        .connect(clock.clone())
        .await?;
    if let Some(file) = &args.save {
        check_place(file, args.force)?;
    }
    let model = choose_model(&client, args.model.as_deref()).await?;
    let mut said = Vec::new();
    if let Some(system) = &args.system {
        said.push(json!({ "role": "system", "content": system }));
    }
    let one = args.message.clone();
    let interactive = one.is_none();
    if interactive && !args.json {
        print::problem(format_args!(
            "talking to {model}; an empty line or Ctrl-D ends it"
        ));
    }
    let mut all_proven = true;
    let mut next = one.map(Ok).or_else(|| read_line(args.json));
    while let Some(line) = next {
        let line = line?;
        said.push(json!({ "role": "user", "content": line }));
        let talk = Conversation {
            client: &client,
            clock: &clock,
            model: &model,
            max_tokens: args.max_tokens,
            quiet: args.json,
        };
        let answer = talk.ask(&said).await?;
        all_proven &= answer.verdict == proof::PROVEN;
        if args.json {
            print::line(format_args!("{}", serde_json::to_string(&answer)?));
        } else {
            print::problem(format_args!("[{}]", answer.verdict));
        }
        if let Some(file) = &args.save {
            let text = serde_json::to_string_pretty(&answer.record)?;
            std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
        }
        said.push(json!({ "role": "assistant", "content": answer.text }));
        next = if interactive { read_line(args.json) } else { None };
    }
    Ok(if all_proven {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Checks that `--save` replaces no file of the user's unasked.
fn check_place(file: &Path, force: bool) -> Result<()> {
    if force || !file.is_file() {
        return Ok(());
    }
    let reason = anyhow!(
        "{} is here already: name another file, or let --force replace it",
        file.display()
    );
    Err(Failure::new(ErrorCode::PlaceTaken, reason))
}

/// The next line of standard input; `None` at its end, or at an empty line.
fn read_line(quiet: bool) -> Option<Result<String>> {
    if !quiet {
        print::bytes_beside(b"> ");
    }
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(_) => Some(line.trim().to_owned())
            .filter(|line| !line.is_empty())
            .map(Ok),
        Err(error) => Some(Err(anyhow!(error).context("cannot read standard input").into())),
    }
}

/// A conversation with one model.
pub(crate) struct Conversation<'a> {
    pub(crate) client: &'a Client,
    pub(crate) clock: &'a SharedClock,
    pub(crate) model: &'a str,
    pub(crate) max_tokens: u32,
    /// Whether the answer is not to be printed as it comes.
    pub(crate) quiet: bool,
}

impl Conversation<'_> {
    /// Asks, prints the answer as it comes, and checks its proof.
    pub(crate) async fn ask(&self, said: &[Value]) -> Result<ChatAnswer> {
        let body = serde_json::to_vec(&json!({
            "model": self.model, "messages": said, "stream": true, "max_tokens": self.max_tokens,
            "stream_options": { "include_usage": true },
        }))?;
        let sent = ProvenExchange::send(self.client, self.clock, PATH, body).await?;
        let (exchange, mut response) = sent.map_err(client_failure)?;
        let (mut whole, mut reader) = (Vec::new(), WordReader::new(exchange.content_type.as_deref()));
        let mut waits = PlaceReader::default();
        while let Some(piece) = response.chunk().await.context("the answer broke off")? {
            if whole.len().saturating_add(piece.len()) > MAX_ANSWER {
                return Err(anyhow!("the answer is longer than {MAX_ANSWER} bytes").into());
            }
            whole.extend_from_slice(&piece);
            for place in waits.read(&piece) {
                self.show_place(&place);
            }
            self.show(&reader.read(&piece));
        }
        self.show(&reader.end());
        self.show("\n");
        if let Some(error) = reader.error {
            return Err(anyhow!("the model's side: {error}").into());
        }
        let checked = exchange.check(self.client, self.clock, &whole).await;
        let checked = checked.map_err(client_failure)?;
        Ok(ChatAnswer {
            text: reader.text,
            verdict: checked.verdict,
            record: checked.record,
        })
    }

    fn show(&self, words: &str) {
        if !self.quiet && !words.is_empty() {
            print::raw(words);
        }
    }

    /// Tells the place in the waiting list, beside the answer.
    fn show_place(&self, place: &WaitingPlace) {
        if !self.quiet {
            print::problem(format_args!("waiting: {place}"));
        }
    }
}

/// Reads the places in the waiting list out of an answer that has begun to stream.
#[derive(Debug, Default)]
struct PlaceReader {
    scanner: CommentScanner,
    /// The part of a comment that has come.
    comment: Vec<u8>,
    /// The last place that was read.
    last: Option<WaitingPlace>,
}

impl PlaceReader {
    /// The places that came with these bytes and differ from the one before.
    fn read(&mut self, bytes: &[u8]) -> Vec<WaitingPlace> {
        let mut places = Vec::new();
        let Self {
            scanner,
            comment,
            last,
        } = self;
        scanner.scan(bytes, |part| match part {
            StreamPart::Held(_) | StreamPart::Body(_) => {}
            StreamPart::Comment(range) => {
                let piece = bytes.get(range).unwrap_or_default();
                if comment.len().saturating_add(piece.len()) <= MAX_LINE {
                    comment.extend_from_slice(piece);
                }
            }
            StreamPart::CommentEnd => {
                let text = String::from_utf8_lossy(comment);
                let place = read_waiting_comment(&text).filter(|place| *last != Some(*place));
                if let Some(place) = place {
                    places.push(place);
                    *last = Some(place);
                }
                comment.clear();
            }
        });
        places
    }
}

/// The words of a whole answer, as its `Content-Type` says how to read them.
pub(crate) fn words_of_answer(content_type: Option<&str>, answer: &[u8]) -> String {
    let mut reader = WordReader::new(content_type);
    reader.read(answer) + &reader.end()
}

/// Reads the words out of an answer: a stream of events, or one document from an engine that does not stream.
#[derive(Debug)]
struct WordReader {
    /// `None` for an answer of neither kind, which has no words.
    documents: Option<JsonReader>,
    text: String,
    error: Option<String>,
}

// === impl WordReader ===

impl WordReader {
    fn new(content_type: Option<&str>) -> Self {
        Self {
            documents: JsonReader::new(BodyKind::of(content_type), MAX_ANSWER),
            text: String::new(),
            error: None,
        }
    }

    /// The words that came with these bytes.
    fn read(&mut self, bytes: &[u8]) -> String {
        self.read_documents(|documents, read| documents.update(bytes, read))
    }

    /// The words of the last document, which the answer's end completes.
    fn end(&mut self) -> String {
        self.read_documents(|documents, read| documents.end(read))
    }

    fn read_documents(&mut self, next: impl FnOnce(&mut JsonReader, &mut dyn FnMut(&[u8]))) -> String {
        let (mut words, error) = (String::new(), &mut self.error);
        let mut read = |json: &[u8]| {
            // `[DONE]` is no document.
            let Ok(document) = serde_json::from_slice::<Value>(json) else {
                return;
            };
            if let Some(message) = document.pointer("/error/message").and_then(Value::as_str) {
                *error = Some(message.to_owned());
            }
            let content = ["/choices/0/delta/content", "/choices/0/message/content"];
            let content = content.iter().find_map(|path| document.pointer(path)?.as_str());
            words.push_str(content.unwrap_or_default());
        };
        if let Some(documents) = &mut self.documents {
            next(documents, &mut read);
        }
        self.text.push_str(&words);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: Option<&str> = Some("text/event-stream");

    #[test]
    fn words_are_read_however_they_are_cut() {
        let stream = concat!(
            ": muster-wait\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"a\u{e9}\"}}]}\r\n\r\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n",
            "data: [DONE]\n\n",
        );
        for cut in 0..stream.len() {
            let (head, tail) = stream.as_bytes().split_at(cut);
            let mut reader = WordReader::new(EVENTS);
            let words = reader.read(head) + &reader.read(tail) + &reader.end();
            assert_eq!(
                (words.as_str(), reader.text.as_str()),
                ("a\u{e9}b", "a\u{e9}b"),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_place_in_the_waiting_list_is_read_once_however_it_is_cut() {
        let stream = concat!(
            ": muster-wait place=2 for=executor\n",
            ": muster-wait place=2 for=executor\n",
            ": muster-wait place=1 for=start about_s=20\n",
            ": muster-wait\n",
            "data: {}\n\n",
        );
        for cut in 0..stream.len() {
            let (head, tail) = stream.as_bytes().split_at(cut);
            let mut reader = PlaceReader::default();
            let mut places = reader.read(head);
            places.extend(reader.read(tail));
            let told: Vec<String> = places.iter().map(ToString::to_string).collect();
            assert_eq!(
                told,
                [
                    "place 2 of the waiting list until a machine is free",
                    "place 1 of the waiting list while the model starts, about 20 s"
                ],
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_file_that_is_here_stays_without_force() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("answer.json");
        check_place(&file, false).unwrap();
        std::fs::write(&file, "mine").unwrap();
        let told = check_place(&file, false).unwrap_err().to_string();
        assert!(
            told.ends_with("is here already: name another file, or let --force replace it"),
            "{told}"
        );
        check_place(&file, true).unwrap();
    }

    #[test]
    fn the_error_of_a_stream_is_kept() {
        let mut reader = WordReader::new(EVENTS);
        reader.read(b"data: {\"error\":{\"message\":\"gone\"}}\n\ndata: [DONE]\n\n");
        assert_eq!(reader.error.as_deref(), Some("gone"));
    }

    #[test]
    fn an_answer_in_one_document_has_words_too() {
        let mut reader = WordReader::new(Some("application/json"));
        let words = reader.read(b"{\"choices\":[{\"message\":{\"content\":\"whole\"}}]}") + &reader.end();
        assert_eq!(words, "whole");
    }
}
