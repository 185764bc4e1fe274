//! `muster proof` and `muster session`: what an answer's proof is worth, and which sessions a validator keeps.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_gateway::saved_proof::{ProofRecord, VerifiedRecord};
use muster_process::SharedClock;
use muster_terminal::{job_text, print};
use serde_json::{Value, json};

use crate::chat::words_of_answer;
use crate::cli::{ListNewest, Proof, ProofCheck, ProofReport, ProofVerify, Session};
use crate::facilitator_access::{self, client_failure};
use crate::failure::{Failure, Result};
use crate::validator;

/// The verdict on an answer whose proof holds.
pub(crate) const PROVEN: &str = "proven";
/// Characters of an answer that are shown, at most.
const MOST_SHOWN: usize = 200;
/// Larger than any record that `muster chat` writes.
const MAX_FILE: u64 = 256 * 1024 * 1024;

/// Runs `muster proof`.
pub(crate) async fn run(command: Proof, clock: SharedClock) -> Result<ExitCode> {
    match command {
        Proof::Verify(args) => verify(args, clock).await,
        Proof::Report(args) => report(args, clock).await,
        Proof::Check(args) => check(args, clock).await,
    }
}

/// Reports an answer as not the model's.
async fn report(args: ProofReport, clock: SharedClock) -> Result<ExitCode> {
    let record = read_record(&args.file)?;
    let body = record
        .report(!args.without_words, args.details)
        .with_context(|| format!("{} has no proof of an answer", args.file.display()))?;
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let told = client.report_answer(&body).await.map_err(client_failure)?;
    print::line(format_args!(
        "{}: `muster proof check {}` shows what it leads to",
        told.message,
        args.file.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Shows what the report of an answer led to.
async fn check(args: ProofCheck, clock: SharedClock) -> Result<ExitCode> {
    let report = read_record(&args.file)?.report(false, None);
    let report = report.with_context(|| format!("{} has no proof of an answer", args.file.display()))?;
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let check = client
        .answer_check(report.job_uuid)
        .await
        .map_err(client_failure)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&check)?,
        false => job_text::describe_check(&check),
    };
    print::line(format_args!("{text}"));
    Ok(ExitCode::SUCCESS)
}

fn read_record(path: &Path) -> Result<ProofRecord> {
    let file = path.display();
    let size = std::fs::metadata(path)
        .with_context(|| format!("cannot read {file}"))?
        .len();
    if size > MAX_FILE {
        return Err(Failure::usage(format_args!("{file} is larger than any proof")));
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
    let record = serde_json::from_str(&text).with_context(|| {
        format!("{file} is no proof: it is what `muster chat --save` writes, or what /v1/proofs/ID answers")
    })?;
    Ok(record)
}

async fn verify(args: ProofVerify, clock: SharedClock) -> Result<ExitCode> {
    let record = read_record(&args.file)?;
    let checked = record.check(clock).await;
    if args.json {
        let verdict = match &checked {
            Ok(proven) => json!({
                "proven": true, "words": proven.has_transcript, "session": proven.proof.session.to_string(),
                "sequence": proven.proof.sequence, "miner": proven.attestation.miner,
                "validator": proven.attestation.audience, "image": proven.attestation.image,
                "end": proven.proof.end.name(), "bytes": proven.proof.output_bytes,
            }),
            Err(worthless) => json!({ "proven": false, "reason": worthless.to_string() }),
        };
        print::line(format_args!("{verdict:#}"));
    } else {
        match &checked {
            Ok(proven) => print::raw(&told(&record, proven)),
            Err(worthless) => print::line(format_args!("NOT PROVEN: {worthless}")),
        }
    }
    Ok(if checked.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn told(record: &ProofRecord, proven: &VerifiedRecord) -> String {
    let (proof, attested) = (&proven.proof, &proven.attestation);
    let mut text = format!("{PROVEN}\n");
    let model = attested
        .model
        .map_or_else(String::new, |digest| format!(", weights {digest}"));
    let lines = [
        (
            "answer",
            format!(
                "{} of session {}, {}",
                proof.sequence,
                proof.session,
                proof.end.name()
            ),
        ),
        ("model", format!("{}{model}", named_model(record))),
        ("image", attested.image.to_string()),
        ("miner", attested.miner.to_string()),
        ("validator", attested.audience.to_string()),
        (
            "asked",
            format!("{} {}, {}", proof.method, proof.path, proof.input),
        ),
        (
            "answered",
            format!(
                "{}, {} bytes, {} ({})",
                proof.status,
                proof.output_bytes,
                proof.output,
                proof.scheme.name()
            ),
        ),
        ("said", words_in_short(record)),
        ("time", format!("{} to {}", proof.from, proof.to)),
        (
            "not signed",
            "the record's own verdict, model, id, usage and cost: the gateway's words, ignored here"
                .to_owned(),
        ),
    ];
    for (name, said) in lines.into_iter().filter(|(_, said)| !said.is_empty()) {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{name:>10}  {said}");
    }
    if !proven.has_transcript {
        let _ = writeln!(
            text,
            "{:>10}  not in this file, so only their digests are proven",
            "words"
        );
    }
    text
}

/// The beginning of the answer's words, which lie in the record in base64.
fn words_in_short(record: &ProofRecord) -> String {
    let words = record.transcript.as_ref().and_then(|words| {
        let answer = STANDARD.decode(&words.response).ok()?;
        Some(words_of_answer(words.content_type.as_deref(), &answer))
    });
    let words = print::plain(words.unwrap_or_default().trim());
    match words.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", words.get(..end).unwrap_or_default()),
        None => words,
    }
}

/// The model that the request names, whose digest is signed; without the words, the gateway's name for it.
fn named_model(record: &ProofRecord) -> String {
    let asked = record.transcript.as_ref().and_then(|words| {
        let request = STANDARD.decode(&words.request).ok()?;
        let request: Value = serde_json::from_slice(&request).ok()?;
        Some(request.get("model")?.as_str()?.to_owned())
    });
    match asked {
        Some(name) => print::plain(&name).to_string(),
        None => format!("{}, says the gateway unsigned", print::plain(&record.view.model)),
    }
}

/// Runs `muster session`.
pub(crate) async fn sessions(command: Session) -> Result<ExitCode> {
    match command {
        Session::Ls(args) => list(args).await,
    }
}

async fn list(args: ListNewest) -> Result<ExitCode> {
    let address = validator::address(args.of.state, &args.of.dir)?;
    let body = validator::ask(address, &format!("/v0/sessions?limit={}", args.limit)).await?;
    if args.of.json {
        print::line(format_args!("{body:#}"));
    } else {
        show(&body);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(body: &Value) {
    let table = |heads: &[&str], rows: Vec<Vec<String>>| print::table(heads, rows.into_iter());
    let heads = [
        "model", "starting", "live", "draining", "waiting", "serving", "trouble",
    ];
    table(&heads, rows(body.get("models"), &heads));
    print::raw("\n");
    let fields = [
        "session",
        "model",
        "miner",
        "opened_at",
        "closed_because",
        "fault",
    ];
    let heads = ["session", "model", "miner", "since", "ended", "fault"];
    table(&heads, rows(body.get("sessions"), &fields));
    let earned = rows(
        body.get("earned"),
        &["miner", "model", "proven", "unproven", "earned"],
    );
    if !earned.is_empty() {
        print::raw("\nanswers of the last day:\n");
        table(
            &["miner", "model", "proven", "not proven", "price in rao"],
            earned,
        );
    }
}

/// The entries of a list, as cells.
fn rows(list: Option<&Value>, columns: &[&str]) -> Vec<Vec<String>> {
    let row = |entry: &Value| columns.iter().map(|column| text(entry.get(column))).collect();
    let all = list.and_then(Value::as_array);
    all.map(|all| all.iter().map(row).collect()).unwrap_or_default()
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
