//! `muster validator check-trusted-miner`: opens and closes a session on the trusted miner.

use std::net::SocketAddr;

use clap::Args;
use muster_process::operator_token::OperatorToken;
use muster_protocol::MinerKey;
use muster_terminal::print;
use serde::Deserialize;
use serde_json::json;

use crate::validator_calls::{OperatorToolError, OrderBody, call};

/// The order on the command line.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// The model of the validator's `gateway.services` of which a session is opened.
    model: String,
}

/// The validator's answer.
#[derive(Debug, Deserialize)]
struct CheckAnswer {
    miner: MinerKey,
    address: String,
    up_s: u64,
}

/// Has the validator open a session of a model on its trusted miner, look at it and close it.
///
/// # Errors
/// The validator refuses, the session does not come up or is not healthy, or the validator does not answer.
pub async fn check_trusted_miner(
    at: SocketAddr,
    token: &OperatorToken,
    order: CheckArguments,
    is_json: bool,
) -> Result<(), OperatorToolError> {
    let body = OrderBody::Json(json!({ "model": order.model }));
    let body = call(at, "/v0/trusted-miner/checks", Some((token, body))).await?;
    if is_json {
        print::line(format_args!("{body:#}"));
        return Ok(());
    }
    let found: CheckAnswer = serde_json::from_value(body).map_err(|_| OperatorToolError::OtherVersion(at))?;
    print::line(format_args!(
        "{} served {} at {} after {} s, sealed and healthy, and has closed the session",
        found.miner, order.model, found.address, found.up_s
    ));
    Ok(())
}
