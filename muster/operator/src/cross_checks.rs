//! `muster audit checks`: the jobs that a running validator ran again on its own miner.

use std::net::SocketAddr;

use muster_terminal::print;
use serde::Deserialize;
use serde_json::Value;

use crate::validator_calls::{OperatorToolError, call};

/// The answer of `GET /v0/audits/cross-checks`, as far as it is printed.
#[derive(Debug, Deserialize)]
struct ShownChecks {
    coldkeys: Vec<ShownColdkey>,
    checks: Vec<ShownCheck>,
}

/// The result of the validator's own deterministic jobs at a coldkey's miners.
#[derive(Debug, Deserialize)]
struct ShownColdkey {
    coldkey: String,
    counted: u64,
    differing: u64,
    /// An earlier validator does not name them.
    #[serde(default)]
    confirmed: u64,
    quality_per_mille: u16,
}

/// One job that ran again.
#[derive(Debug, Deserialize)]
struct ShownCheck {
    job: String,
    origin: String,
    state: String,
    reason: String,
    miner: Option<String>,
    ended_at: String,
}

/// Prints the validator's newest cross-checks of users' jobs, and what its own jobs show of each coldkey.
///
/// # Errors
/// No validator answers.
pub async fn list_cross_checks(at: SocketAddr, limit: u32, is_json: bool) -> Result<(), OperatorToolError> {
    let body = call(at, &format!("/v0/audits/cross-checks?limit={limit}"), None).await?;
    if is_json {
        print::line(format_args!("{body:#}"));
        return Ok(());
    }
    let ShownChecks { coldkeys, checks } = read(at, body)?;
    let rows = checks.into_iter().map(|check| {
        let miner = check.miner.unwrap_or_else(|| "-".to_owned());
        vec![
            check.ended_at,
            check.job,
            check.origin,
            miner,
            check.state,
            check.reason,
        ]
    });
    print::table(&["ended", "job", "origin", "miner", "state", "reason"], rows);
    if !coldkeys.is_empty() {
        let rows = coldkeys.into_iter().map(|one| {
            let numbers = [one.counted, one.differing, one.confirmed].map(|number| number.to_string());
            let [counted, differing, confirmed] = numbers;
            vec![
                one.coldkey,
                counted,
                differing,
                confirmed,
                one.quality_per_mille.to_string(),
            ]
        });
        print::table(&["coldkey", "own jobs", "differ", "confirmed", "quality"], rows);
    }
    Ok(())
}

fn read(at: SocketAddr, body: Value) -> Result<ShownChecks, OperatorToolError> {
    serde_json::from_value(body).map_err(|_| OperatorToolError::OtherVersion(at))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_validators_answer_is_read_and_another_is_refused() {
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        let answer = json!({"share_ppm": 1, "refunded_answers": {}, "coldkeys": [{"coldkey": "5", "counted": 3,
            "differing": 1, "confirmed": 0, "alarmed": false, "quality_per_mille": 1000}],
            "checks": [{"job": "1", "origin": "drawn", "state": "differs", "reason": "r", "miner": null,
            "ended_at": "now"}]});
        let shown = read(at, answer).unwrap();
        assert_eq!(
            (shown.checks[0].state.as_str(), shown.coldkeys[0].differing),
            ("differs", 1)
        );
        assert!(read(at, json!({"checks": []})).is_err());
    }
}
