//! `muster validator collateral`: the deposit of each miner.

use std::net::SocketAddr;

use muster_protocol::{MinerKey, Rao};
use muster_routing::{CollateralVerdict, Deposit};
use muster_terminal::print;
use serde::Deserialize;

use crate::validator_calls::{OperatorToolError, call};

/// The part of `GET /v0/collateral` that the table shows.
#[derive(Debug, Deserialize)]
struct ShownCollateral {
    collateral: ShownSource,
    miners: Vec<ShownMiner>,
}

#[derive(Debug, Deserialize)]
struct ShownSource {
    source: String,
    place: Option<String>,
    required: Option<Rao>,
    read_at: Option<String>,
    failure: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ShownMiner {
    uid: u16,
    miner: MinerKey,
    deposit: Option<Deposit>,
    #[serde(flatten)]
    verdict: CollateralVerdict,
}

/// Prints each miner's deposit with its verdict; as JSON, also the newest slashes.
///
/// # Errors
/// No validator answers.
pub async fn list_collateral(at: SocketAddr, is_json: bool) -> Result<(), OperatorToolError> {
    let body = call(at, "/v0/collateral", None).await?;
    if is_json {
        print::line(format_args!("{body:#}"));
        return Ok(());
    }
    let shown: ShownCollateral =
        serde_json::from_value(body).map_err(|_| OperatorToolError::OtherVersion(at))?;
    print::line(format_args!("{}", describe_source(&shown.collateral)));
    let rows = shown.miners.iter().map(|miner| {
        vec![
            miner.uid.to_string(),
            miner.miner.to_string(),
            match miner.deposit {
                Some(Deposit::Held { amount }) => amount.to_string(),
                Some(Deposit::NoAccount) => "no EVM address".to_owned(),
                None => "-".to_owned(),
            },
            describe_verdict(miner.verdict).to_owned(),
        ]
    });
    print::table(&["uid", "miner", "deposit", "verdict"], rows);
    Ok(())
}

fn describe_source(source: &ShownSource) -> String {
    let Some(required) = source.required else {
        return "this validator asks for no collateral (collateral.source)".to_owned();
    };
    let place = source.place.as_deref().unwrap_or(&source.source);
    let mut text = format!("{required} is required, in {place}");
    match &source.read_at {
        Some(at) => text.push_str(&format!("; last read at {at}")),
        None => text.push_str("; not read yet"),
    }
    if let Some(failure) = &source.failure {
        text.push_str(&format!("; the last attempt failed: {failure}"));
    }
    text
}

fn describe_verdict(verdict: CollateralVerdict) -> &'static str {
    match verdict {
        CollateralVerdict::NotRequired => "not required",
        CollateralVerdict::Enough => "enough",
        CollateralVerdict::TooLittle { .. } => "too little",
        CollateralVerdict::NoAccount { .. } => "none",
        CollateralVerdict::Unknown { .. } => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_told_with_its_trouble() {
        let source = |required, failure: Option<&str>| ShownSource {
            source: "evm".to_owned(),
            place: Some("the contract 0x12 at rpc.example".to_owned()),
            required,
            read_at: None,
            failure: failure.map(str::to_owned),
        };
        let told = describe_source(&source(Some(Rao(5)), Some("no node answers")));
        for words in [
            "0.000000005 TAO is required",
            "0x12",
            "not read yet",
            "no node answers",
        ] {
            assert!(told.contains(words), "{words} in {told}");
        }
        assert!(describe_source(&source(None, None)).contains("no collateral"));
    }
}
