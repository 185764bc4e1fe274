//! `muster validator adopt`: the operator's order to let a verdict about streamed answers count.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use muster_process::operator_token::OperatorToken;
use muster_protocol::{Digest, Hotkey};
use muster_terminal::print;
use serde::Deserialize;

use crate::validator_calls::{OperatorToolError, OrderBody, call};

/// The order on the command line.
#[derive(Debug, Args)]
pub struct AdoptArguments {
    /// The file with the bundle of evidence; `muster audit replay` shows what follows from it.
    file: PathBuf,
}

/// The validator's answer.
#[derive(Debug, Deserialize)]
struct AdoptedAnswer {
    digest: Digest,
    coldkey: Hotkey,
    model: String,
    verdict: String,
    quality_per_mille: u16,
}

/// Has the validator replay a bundle and adopt its verdict.
///
/// # Errors
/// The file cannot be read, or the validator refuses or does not answer. The order may be given again.
pub async fn adopt_audit(
    at: SocketAddr,
    token: &OperatorToken,
    order: AdoptArguments,
    is_json: bool,
) -> Result<(), OperatorToolError> {
    let bundle = read(&order.file)?;
    let body = call(at, "/v0/audits", Some((token, OrderBody::Text(bundle)))).await?;
    if is_json {
        print::line(format_args!("{body:#}"));
        return Ok(());
    }
    let adopted: AdoptedAnswer =
        serde_json::from_value(body).map_err(|_| OperatorToolError::OtherVersion(at))?;
    print::line(format_args!(
        "adopted {}: coldkey {}, model {}, {}; its miners score with {} of 1000 from the next cycle on",
        adopted.digest, adopted.coldkey, adopted.model, adopted.verdict, adopted.quality_per_mille
    ));
    Ok(())
}

fn read(path: &Path) -> Result<String, OperatorToolError> {
    std::fs::read_to_string(path).map_err(|source| OperatorToolError::Evidence {
        path: path.to_owned(),
        source,
    })
}
