//! `muster validator slash`: the operator's order to take a part of a miner's collateral.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use muster_collateral::{Evidence, SlashOrder};
use muster_process::operator_token::OperatorToken;
use muster_protocol::{MinerKey, Rao};
use muster_terminal::print;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::amount::parse_tao;
use crate::validator_calls::{OperatorToolError, OrderBody, call};

/// The largest evidence file that is read, in bytes.
const MAX_EVIDENCE: u64 = 1 << 30;

/// The order on the command line.
#[derive(Debug, Args)]
pub struct SlashArguments {
    /// The miner's hotkey.
    miner: MinerKey,
    /// The amount in TAO, such as 0.005.
    #[arg(long, value_name = "TAO", value_parser = parse_tao)]
    amount: Rao,
    /// The file that shows why. Its digests are recorded, and the contract gets its MD5.
    #[arg(long, value_name = "FILE")]
    evidence: PathBuf,
    /// Where others find the file; the contract records it.
    #[arg(long)]
    url: Option<String>,
    /// Do not ask on the terminal.
    #[arg(long)]
    yes: bool,
}

/// The validator's answer to an order.
#[derive(Debug, Deserialize)]
#[serde(tag = "slash", rename_all = "snake_case")]
enum SlashAnswer {
    Preview {
        summary: String,
    },
    UnderWay {
        amount: Rao,
    },
    Done {
        amount: Rao,
        reference: String,
        earlier: bool,
    },
}

/// Shows the order's effect, asks, and has the validator carry it out.
///
/// # Errors
/// The evidence cannot be read, the operator says no, or the validator refuses or does not answer. An order whose end
/// is not known may be given again.
pub async fn slash_miner(
    at: SocketAddr,
    token: &OperatorToken,
    order: SlashArguments,
    is_json: bool,
) -> Result<(), OperatorToolError> {
    let evidence = Evidence::of(&read_evidence(&order.evidence)?);
    let SlashArguments {
        miner, amount, yes, ..
    } = order;
    let url = order.url.unwrap_or_default();
    let slash = SlashOrder {
        miner,
        amount,
        evidence,
        url,
    };
    let question = match send(at, token, &slash, true).await? {
        (_, SlashAnswer::Preview { summary }) => summary,
        (_, SlashAnswer::UnderWay { amount }) => {
            format!("a slash of {amount} of this miner by this evidence is under way; it is carried on")
        }
        (body, done @ SlashAnswer::Done { .. }) => {
            report(is_json, &body, &done);
            return Ok(());
        }
    };
    print::problem(format_args!(
        "{question}\nevidence {}: SHA-256 {}, MD5 {}",
        order.evidence.display(),
        evidence.sha256,
        evidence.md5_hex()
    ));
    if !yes && !confirm()? {
        return Err(OperatorToolError::Usage("nothing was slashed".to_owned()));
    }
    let (body, answer) = send(at, token, &slash, false).await?;
    report(is_json, &body, &answer);
    Ok(())
}

/// Sends the order; `preview` asks only for its effect.
async fn send(
    at: SocketAddr,
    token: &OperatorToken,
    order: &SlashOrder,
    preview: bool,
) -> Result<(Value, SlashAnswer), OperatorToolError> {
    let mut body = json!(order);
    if let Some(fields) = body.as_object_mut() {
        fields.insert("preview".to_owned(), json!(preview));
    }
    let body = call(at, "/v0/collateral/slashes", Some((token, OrderBody::Json(body)))).await?;
    let answer = SlashAnswer::deserialize(&body).map_err(|_| OperatorToolError::OtherVersion(at))?;
    Ok((body, answer))
}

fn report(is_json: bool, body: &Value, answer: &SlashAnswer) {
    if is_json {
        print::line(format_args!("{body:#}"));
        return;
    }
    match answer {
        SlashAnswer::Done {
            amount,
            reference,
            earlier: true,
        } => print::line(format_args!(
            "{amount} was slashed by this evidence already ({reference}); nothing was done now"
        )),
        SlashAnswer::Done {
            amount,
            reference,
            earlier: false,
        } => print::line(format_args!("slashed {amount} ({reference})")),
        SlashAnswer::Preview { summary } => print::line(format_args!("{summary}")),
        SlashAnswer::UnderWay { amount } => print::line(format_args!("a slash of {amount} is under way")),
    }
}

fn read_evidence(path: &Path) -> Result<Vec<u8>, OperatorToolError> {
    let failed = |source| OperatorToolError::Evidence {
        path: path.to_owned(),
        source,
    };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length == 0 || length > MAX_EVIDENCE {
        return Err(OperatorToolError::Usage(format!(
            "{} has {length} bytes: evidence is a file of at most a GiB that is not empty",
            path.display()
        )));
    }
    std::fs::read(path).map_err(failed)
}

/// Asks on the terminal.
fn confirm() -> Result<bool, OperatorToolError> {
    if !std::io::stdin().is_terminal() {
        let text = "slashing needs an answer on the terminal, or --yes";
        return Err(OperatorToolError::Usage(text.to_owned()));
    }
    print::problem(format_args!("Type yes to slash:"));
    let mut typed = String::new();
    std::io::stdin()
        .read_line(&mut typed)
        .map_err(OperatorToolError::Terminal)?;
    Ok(typed.trim() == "yes")
}
