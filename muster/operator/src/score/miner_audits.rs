//! `muster miner audits` and `muster miner appeal`: what validators state about a miner's streamed answers, whether the
//! miner's own replay agrees, and what to do about it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use muster_audit::Verdict;
use muster_audit_check::store::{ListedFinding, LogCount, NotifiedVerdict};
use muster_audit_check::{AppealError, AuditCheckStore, appeal};
use muster_identity::Keypair;
use muster_identity::wallet::{WalletPath, load_hotkey};
use muster_protocol::{Digest, Timestamp};
use serde_json::json;

use crate::score::{Result, ScoreToolError, replay_bundle, write};

/// The commands of a miner's operator about spot checks of its answers. The store of the miner on this machine answers.
#[derive(Debug, Subcommand)]
pub enum MinerEvidence {
    /// Show what validators say about this miner's streamed answers, and what is wrong with it.
    Audits(MinerAudits),
    /// Appeal against a verdict about this miner's streamed answers: the validator judges fresh ones.
    Appeal(MinerAppeal),
}

/// `muster miner audits`.
#[derive(Debug, Args)]
pub struct MinerAudits {
    #[command(subcommand)]
    command: Option<MinerAuditsCommand>,
    /// The miner's configuration, TOML. Without it, every default.
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// Print it as JSON.
    #[arg(long, global = true)]
    json: bool,
}

/// The commands about what validators say.
#[derive(Debug, Subcommand)]
enum MinerAuditsCommand {
    /// List the logs of validators, their verdicts, and what is wrong with them; the default.
    Ls,
    /// Name everything from which a verdict about this miner follows.
    Show {
        /// The digest of the verdict's bundle.
        bundle: Digest,
    },
    /// Keep a bundle of evidence about this miner in a file.
    Save {
        /// The digest of the bundle.
        bundle: Digest,
        /// The path of the file that is written.
        file: PathBuf,
    },
}

/// `muster miner appeal`.
#[derive(Debug, Args)]
pub struct MinerAppeal {
    /// The digest of the verdict's bundle.
    bundle: Digest,
    /// The reason in words, for the validator's operator.
    #[arg(long, default_value = "")]
    reason: String,
    /// The miner's configuration, TOML. Without it, every default.
    #[arg(long)]
    config: Option<PathBuf>,
}

impl MinerEvidence {
    /// The miner's configuration that the command names.
    pub fn config(&self) -> Option<&Path> {
        match self {
            Self::Audits(asked) => asked.config.as_deref(),
            Self::Appeal(asked) => asked.config.as_deref(),
        }
    }

    /// The answer of the miner's store at `url` as text. An appeal is signed by the hotkey of `wallet` and stored; the
    /// running miner sends it.
    ///
    /// # Errors
    /// The store or the wallet cannot be used, the bundle is not kept, a file cannot be written, or there is nothing to
    /// appeal against.
    pub async fn answer(&self, url: &str, wallet: &WalletPath, now: Timestamp) -> Result<String> {
        let pool = muster_store::open_existing(url).await?;
        let store = AuditCheckStore::new(pool.clone());
        let answer = match self {
            Self::Audits(asked) => asked.run(&store).await,
            Self::Appeal(asked) => match load_hotkey(wallet) {
                Ok(key) => asked.run(&store, &key, now).await,
                Err(error) => Err(error.into()),
            },
        };
        // SQLite folds its journal into the one file of the store.
        pool.close().await;
        answer
    }
}

impl MinerAudits {
    async fn run(&self, store: &AuditCheckStore) -> Result<String> {
        match &self.command {
            None | Some(MinerAuditsCommand::Ls) => self.list(store).await,
            Some(MinerAuditsCommand::Show { bundle }) => {
                let text = bundle_of(store, *bundle).await?;
                replay_bundle(&text, Some(&bundle.to_string()), self.json)
            }
            Some(MinerAuditsCommand::Save { bundle, file }) => {
                write(file, &bundle_of(store, *bundle).await?)?;
                Ok(format!(
                    "{} has the bundle: `muster audit replay {0}` computes its verdict\n",
                    file.display()
                ))
            }
        }
    }

    async fn list(&self, store: &AuditCheckStore) -> Result<String> {
        let logs = store.log_counts().await?;
        let verdicts = store.verdicts().await?;
        let findings = store.findings().await?;
        if self.json {
            let all = json!({ "logs": logs, "verdicts": verdicts, "findings": findings });
            return Ok(format!("{all:#}\n"));
        }
        Ok(describe(&logs, &verdicts, &findings))
    }
}

async fn bundle_of(store: &AuditCheckStore, bundle: Digest) -> Result<String> {
    let text = store.bundle(bundle).await?;
    text.ok_or(ScoreToolError::NoBundle)
}

impl MinerAppeal {
    async fn run(&self, store: &AuditCheckStore, key: &Keypair, now: Timestamp) -> Result<String> {
        let appeals = appeal(store, key, self.bundle, &self.reason, now).await?;
        let mut text = String::new();
        for (validator, signed) in appeals {
            // Writing to a string never fails.
            let _ = writeln!(
                text,
                "the appeal is sent when validator {validator} connects next, within an hour if it runs. It then audits \
                 fresh answers for a day at most: keep an executor free.\nIt may be posted to the validator's page, too: \
                 POST /v0/audits/{}/appeals\n{signed}",
                self.bundle
            );
        }
        Ok(text)
    }
}

fn describe(logs: &[LogCount], verdicts: &[NotifiedVerdict], findings: &[ListedFinding]) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    if logs.is_empty() && verdicts.is_empty() && findings.is_empty() {
        line("no validator has told this miner of spot checks".to_owned());
    }
    for log in logs {
        line(format!(
            "validator {}: {} headers up to bucket {} with {} answers of this miner; {} draws are revealed, {} answers \
             have an outcome",
            log.validator, log.headers, log.newest, log.answers, log.revealed, log.audited
        ));
    }
    for verdict in verdicts {
        line(format!(
            "\n{} for {} by validator {} since {}\n  bundle  {}\n  replay  {}",
            verdict.verdict, verdict.model, verdict.validator, verdict.since, verdict.bundle, verdict.words
        ));
        match (verdict.appealed_at, &verdict.answer) {
            (Some(at), Some(answer)) => line(format!("  appeal  of {at}: {answer}")),
            (Some(at), None) => line(format!("  appeal  of {at}: it waits for the validator")),
            (None, _) if Verdict::is_accusation(&verdict.verdict) => {
                line(format!("  to do   {}", advice(verdict)));
            }
            (None, _) => {}
        }
    }
    if !findings.is_empty() {
        line("\nWhat is wrong with validators' spot checks, the newest first:".to_owned());
    }
    for finding in findings {
        line(format!(
            "  {}  {}  {} ({}, validator {})",
            finding.found_at, finding.kind, finding.about, finding.words, finding.validator
        ));
    }
    text
}

/// The advice to an operator about an accusation.
fn advice(verdict: &NotifiedVerdict) -> String {
    let appeal = format!("`muster miner appeal {}`", verdict.bundle);
    match verdict.opinion.as_str() {
        "agrees" => format!("compare the engine with the whitelisted image; if it is the one, {appeal}"),
        "not_fetched" => format!(
            "read the evidence at the validator (`muster audit explain {}`), compare the engine with the whitelisted image",
            verdict.bundle
        ),
        _ => format!(
            "the evidence does not hold: keep it (`muster miner audits save`), show it to other validators, {appeal}"
        ),
    }
}

impl From<AppealError> for ScoreToolError {
    fn from(error: AppealError) -> Self {
        match error {
            AppealError::Store(error) => Self::Store(error),
            AppealError::Unknown
            | AppealError::NoAccusation
            | AppealError::NotReplayed
            | AppealError::LongReason => Self::Appeal(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Hotkey, ValidatorKey};

    use super::*;

    fn verdict(name: &str, opinion: &str) -> NotifiedVerdict {
        NotifiedVerdict {
            validator: ValidatorKey(Hotkey::from_bytes([1; 32])),
            bundle: Digest::of(b"bundle"),
            verdict: name.to_owned(),
            model: "tiny".to_owned(),
            quality_per_mille: 0,
            since: Timestamp::from_secs(1_000),
            has_bundle: true,
            opinion: opinion.to_owned(),
            words: "words".to_owned(),
            subnet: None,
            appealed_at: None,
            answer: None,
        }
    }

    #[test]
    fn an_accusation_says_what_to_do_and_an_appeal_what_became_of_it() {
        let accused = describe(&[], &[verdict("convicted", "agrees")], &[]);
        assert!(accused.contains("convicted for tiny"), "{accused}");
        assert!(accused.contains("muster miner appeal sha256:"), "{accused}");
        let false_one = describe(&[], &[verdict("suspect", "proves_nothing")], &[]);
        assert!(false_one.contains("does not hold"), "{false_one}");
        let too_long = describe(&[], &[verdict("suspect", "not_fetched")], &[]);
        assert!(too_long.contains("muster audit explain sha256:"), "{too_long}");
        let lifted = describe(&[], &[verdict("consistent", "agrees")], &[]);
        assert!(!lifted.contains("to do"), "{lifted}");
        let appealed = NotifiedVerdict {
            appealed_at: Some(Timestamp::from_secs(2_000)),
            ..verdict("convicted", "agrees")
        };
        assert!(describe(&[], std::slice::from_ref(&appealed), &[]).contains("waits for the validator"));
        let answered = NotifiedVerdict {
            answer: Some("fresh answers are audited".to_owned()),
            ..appealed
        };
        assert!(describe(&[], &[answered], &[]).contains("fresh answers are audited"));
        assert!(describe(&[], &[], &[]).contains("no validator"));
    }
}
