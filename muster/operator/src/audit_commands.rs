//! `muster audit run`, `muster audit ls` and `muster audit show`: the audits of a running validator.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use muster_process::operator_token::OperatorToken;
use muster_protocol::Digest;
use muster_terminal::print;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::printed_verdicts::ShownVerdicts;
use crate::validator_calls::{OperatorToolError, OrderBody, call, escape};

/// The time between two looks at an audit that is under way.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Audits among which one is looked for.
const SEARCHED: u32 = 1_000;

/// An audit as the validator lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ShownRun {
    /// The id of the audit.
    run: String,
    /// The coldkey that is judged.
    coldkey: String,
    /// The model by its name in the whitelist.
    model: String,
    /// `starting`, `scoring`, `judged` or `ended`.
    state: String,
    /// The answers that are to be scored.
    answers: u64,
    /// The answers of them that were scored.
    scored: u64,
    /// When it began.
    began_at: String,
    /// When it ended, if it has.
    ended_at: Option<String>,
    /// The bundle that came of it.
    bundle: Option<Digest>,
    /// The verdict by its name.
    verdict: Option<String>,
    /// Why there is no verdict.
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Runs {
    runs: Vec<ShownRun>,
}

impl ShownRun {
    /// The state as text.
    fn describe(&self) -> String {
        match (self.state.as_str(), &self.verdict, &self.reason) {
            (_, Some(verdict), _) => verdict.clone(),
            (_, None, Some(reason)) => format!("no verdict: {reason}"),
            ("starting", None, None) => "a reference is being started".to_owned(),
            ("scoring", None, None) => format!("{} of {} answers are scored", self.scored, self.answers),
            (other, None, None) => other.to_owned(),
        }
    }
}

/// `muster audit run`.
#[derive(Debug, Args)]
pub struct AuditOrderArguments {
    /// The only model to audit; all models by default.
    #[arg(long)]
    model: Option<String>,
}

/// `muster audit show`.
#[derive(Debug, Args)]
pub struct ShowAuditArguments {
    /// The id of an audit, its first digits, or the digest of a bundle.
    audit: String,
}

/// `muster audit explain`.
#[derive(Debug, Args)]
pub struct ExplainAuditArguments {
    /// The digest of the bundle.
    pub bundle: Digest,
    /// Keep the bundle in this file for `muster audit replay`.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}

/// Has the validator audit what has gathered, of one model or of all, with a progress bar, and prints the audits once
/// they have ended. Returns whether each has a verdict.
///
/// # Errors
/// The validator refuses or does not answer.
pub async fn run_audits(
    at: SocketAddr,
    token: &OperatorToken,
    order: AuditOrderArguments,
    is_json: bool,
) -> Result<bool, OperatorToolError> {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{spinner} [{wide_bar}] {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let look = |runs: &[ShownRun]| {
        bar.set_length(runs.iter().map(|run| run.answers).sum());
        bar.set_position(runs.iter().map(|run| run.scored).sum());
        if let Some(run) = runs.first() {
            bar.set_message(format!("{}: {}", run.model, run.describe()));
        }
        bar.tick();
    };
    let ended = follow_audits(at, token, order.model.as_deref(), look).await;
    bar.finish_and_clear();
    let runs = ended?;
    if runs.is_empty() && !is_json {
        print::line(format_args!("no answer waits for an audit"));
        return Ok(true);
    }
    print_runs(&runs, is_json);
    Ok(runs.iter().all(|run| run.verdict.is_some()))
}

/// Orders the audits and returns them once they have ended. `look` sees those that are under way, now and again.
async fn follow_audits(
    at: SocketAddr,
    token: &OperatorToken,
    model: Option<&str>,
    mut look: impl FnMut(&[ShownRun]),
) -> Result<Vec<ShownRun>, OperatorToolError> {
    let path = match model {
        // A name in the whitelist has no characters that a query cannot have, but a wrong one may.
        Some(model) => format!("/v0/audits/runs?model={}", escape(model)),
        None => "/v0/audits/runs".to_owned(),
    };
    let order = Some((token, OrderBody::Json(json!({}))));
    let ending = call(at, &path, order);
    tokio::pin!(ending);
    loop {
        tokio::select! {
            ended = &mut ending => return read_runs(at, ended?),
            () = tokio::time::sleep(LOOK_EVERY) => {
                let mut runs = read_newest(at, 20).await?;
                runs.retain(|run| run.ended_at.is_none());
                look(&runs);
            }
        }
    }
}

/// Prints the validator's newest audits, the newest bundles of all validators with their states, and the self-tests.
///
/// # Errors
/// No validator answers.
pub async fn list_audits(at: SocketAddr, limit: u32, is_json: bool) -> Result<(), OperatorToolError> {
    let runs = read_newest(at, limit).await?;
    let verdicts = read_verdicts(at, limit).await?;
    if is_json {
        print_all(&runs, &verdicts);
        return Ok(());
    }
    print_runs(&runs, false);
    verdicts.print();
    Ok(())
}

/// Prints one audit, or everything about a bundle: the audits from which it came, its state, and its author's
/// self-test.
///
/// # Errors
/// No validator answers, or it knows no such audit.
pub async fn show_audit(
    at: SocketAddr,
    wanted: ShowAuditArguments,
    is_json: bool,
) -> Result<(), OperatorToolError> {
    let mut runs = read_newest(at, SEARCHED).await?;
    let is_meant = |run: &ShownRun| {
        let bundle = run.bundle.map(|digest| digest.to_string());
        run.run.starts_with(&wanted.audit) || bundle.as_deref() == Some(wanted.audit.as_str())
    };
    runs.retain(is_meant);
    let verdicts = read_verdicts(at, SEARCHED).await?.about(&wanted.audit);
    if runs.is_empty() && verdicts == ShownVerdicts::default() {
        return Err(OperatorToolError::Usage(format!(
            "no audit {} is among the newest {SEARCHED}: `muster audit ls` lists them",
            wanted.audit
        )));
    }
    if is_json {
        print_all(&runs, &verdicts);
        return Ok(());
    }
    if !runs.is_empty() {
        print_runs(&runs, false);
    }
    verdicts.print_details();
    Ok(())
}

/// The newest bundles of all validators.
async fn read_verdicts(at: SocketAddr, limit: u32) -> Result<ShownVerdicts, OperatorToolError> {
    let body = call(at, &format!("/v0/audits?limit={limit}"), None).await?;
    serde_json::from_value(body).map_err(|_| OperatorToolError::OtherVersion(at))
}

fn print_all(runs: &[ShownRun], verdicts: &ShownVerdicts) {
    let all = json!({
        "runs": runs, "audits": verdicts.audits, "offers": verdicts.offers, "self_tests": verdicts.self_tests,
    });
    print::line(format_args!("{all:#}"));
}

/// The validator's newest audits.
async fn read_newest(at: SocketAddr, limit: u32) -> Result<Vec<ShownRun>, OperatorToolError> {
    let body = call(at, &format!("/v0/audits/runs?limit={limit}"), None).await?;
    read_runs(at, body)
}

/// The text of the bundle with this digest, byte for byte.
///
/// # Errors
/// The validator does not answer, or has no such bundle.
pub async fn fetch_bundle(at: SocketAddr, digest: &Digest) -> Result<String, OperatorToolError> {
    let body = call(at, &format!("/v0/audits/{digest}"), None).await?;
    // The canonical text of a bundle is sorted and without spaces, as serde_json writes a map.
    serde_json::to_string(&body).map_err(|_| OperatorToolError::OtherVersion(at))
}

/// Prints audits as a table, or as JSON.
fn print_runs(runs: &[ShownRun], is_json: bool) {
    if is_json {
        print::line(format_args!("{:#}", json!({ "runs": runs })));
        return;
    }
    let rows = runs.iter().map(|run| {
        vec![
            run.began_at.clone(),
            run.model.clone(),
            run.coldkey.clone(),
            run.answers.to_string(),
            run.describe(),
            run.bundle
                .map_or_else(|| "-".to_owned(), |digest| digest.to_string()),
        ]
    });
    print::table(
        &["began", "model", "coldkey", "answers", "verdict", "bundle"],
        rows,
    );
}

fn read_runs(at: SocketAddr, body: Value) -> Result<Vec<ShownRun>, OperatorToolError> {
    let runs: Runs = serde_json::from_value(body).map_err(|_| OperatorToolError::OtherVersion(at))?;
    Ok(runs.runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audit_says_where_it_is_and_how_it_ended() {
        let run = |state: &str, verdict: Option<&str>, reason: Option<&str>| ShownRun {
            run: "1".to_owned(),
            coldkey: "5".to_owned(),
            model: "tiny".to_owned(),
            state: state.to_owned(),
            answers: 40,
            scored: 12,
            began_at: "now".to_owned(),
            ended_at: None,
            bundle: None,
            verdict: verdict.map(str::to_owned),
            reason: reason.map(str::to_owned),
        };
        assert_eq!(
            run("scoring", None, None).describe(),
            "12 of 40 answers are scored"
        );
        assert_eq!(run("judged", Some("convicted"), None).describe(), "convicted");
        assert_eq!(
            run("ended", None, Some("it died")).describe(),
            "no verdict: it died"
        );
        assert_eq!(escape("a b/c&d"), "a%20b/c%26d");
    }
}
