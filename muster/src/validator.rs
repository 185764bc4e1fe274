//! Reads a validator's state at its `bind`; `muster route` explains the choice of miners from it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use muster_operator::{
    OperatorToolError, adopt_audit, check_trusted_miner, describe_routes, list_collateral, slash_miner,
};
use muster_process::SharedClock;
use muster_process::operator_token::OperatorToken;
use muster_protocol::{JobIdPrefix, JobReference};
use muster_terminal::print;
use serde_json::Value;

use muster_local_subnet::subnet_folder::{Layout, LocalSubnet};

use crate::cli::{OfValidator, Route, RouteExplain, ValidatorCommand};
use crate::facilitator_access::{self, client_failure};
use crate::failure::{Failure, Result};

/// A validator answers from its own store.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the command.
pub(crate) async fn run(command: Route, clock: SharedClock) -> Result<ExitCode> {
    match command {
        Route::Explain(args) => explain(*args, clock).await,
    }
}

async fn explain(args: RouteExplain, clock: SharedClock) -> Result<ExitCode> {
    let at = address(args.state, &args.access.dir)?;
    let job = match known_to_validators(&args.job) {
        Some(beginning) => beginning,
        None => {
            let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
            let job = client.find_job(&args.job).await.map_err(client_failure)?;
            job.to_string()
        }
    };
    let body = ask(at, &format!("/v0/jobs/{job}/route")).await?;
    if args.json {
        print::line(format_args!("{body:#}"));
        return Ok(ExitCode::SUCCESS);
    }
    print::raw(&describe_routes(body).context("the validator is of another version")?);
    Ok(ExitCode::SUCCESS)
}

/// The reference in the form in which a validator finds the job: an id or the beginning of one. None for a name and for
/// the newest job of an account, because a validator knows neither.
fn known_to_validators(job: &JobReference) -> Option<String> {
    match job {
        JobReference::Id(id) => Some(id.to_string()),
        JobReference::Text(text) => {
            let beginning: Option<JobIdPrefix> = text.as_str().parse().ok();
            beginning.map(|beginning| beginning.to_string())
        }
        JobReference::Last => None,
    }
}

/// The commands about a running validator.
pub(crate) async fn operate(command: ValidatorCommand) -> Result<ExitCode> {
    let done = match command {
        ValidatorCommand::Collateral(of) => list_collateral(address(of.state, &of.dir)?, of.json).await,
        ValidatorCommand::Slash(args) => {
            let (at, token) = operator_of(&args.token_file, &args.of)?;
            slash_miner(at, &token, args.order, args.of.json).await
        }
        ValidatorCommand::Adopt(args) => {
            let (at, token) = operator_of(&args.token_file, &args.of)?;
            adopt_audit(at, &token, args.order, args.of.json).await
        }
        ValidatorCommand::CheckTrustedMiner(args) => {
            let (at, token) = operator_of(&args.token_file, &args.of)?;
            check_trusted_miner(at, &token, args.order, args.of.json).await
        }
    };
    done.map(|()| ExitCode::SUCCESS).map_err(failed)
}

/// The failure of a command about a running validator.
pub(crate) fn failed(error: OperatorToolError) -> Failure {
    if let OperatorToolError::Usage(text) = error {
        Failure::usage(text)
    } else {
        anyhow!(error).into()
    }
}

/// Where a validator is asked, and the token of its operator.
pub(crate) fn operator_of(
    token_file: &Option<PathBuf>,
    of: &OfValidator,
) -> Result<(SocketAddr, OperatorToken)> {
    let at = address(of.state, &of.dir)?;
    let token = operator_token(token_file.clone(), of.state, &of.dir)?;
    Ok((at, token))
}

/// Where it is asked: at `state`, or that of the subnet in `folder`.
pub(crate) fn address(state: Option<SocketAddr>, folder: &Path) -> Result<SocketAddr> {
    if let Some(address) = state {
        return Ok(address);
    }
    let subnet = LocalSubnet::read(folder)?;
    subnet.map(|subnet| subnet.validator_status).ok_or_else(|| {
        Failure::usage(format_args!(
            "no validator: give --state with the address in its configuration's `bind`, or run `muster up` here first \
             ({} has no subnet)",
            folder.display()
        ))
    })
}

/// The token of its operator: in `file`, or that of the subnet in `folder`.
pub(crate) fn operator_token(
    file: Option<PathBuf>,
    state: Option<SocketAddr>,
    folder: &Path,
) -> Result<OperatorToken> {
    let file = match (file, state) {
        (Some(file), _) => file,
        (None, None) => Layout::create(folder)?.operator_token(),
        (None, Some(_)) => {
            return Err(Failure::usage(
                "the validator does this for its operator only: give --token-file with the path of \
                 `operator_token` in its configuration",
            ));
        }
    };
    let token = OperatorToken::read(&file);
    Ok(token.with_context(|| format!("{} has no token of a validator's operator", file.display()))?)
}

/// Its answer to `GET path`.
pub(crate) async fn ask(address: SocketAddr, path: &str) -> Result<Value> {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build()?;
    let url = format!("http://{address}{path}");
    let answer = client.get(&url).send().await.with_context(|| {
        format!("no validator answers at {address}; its `bind` says where its state can be read")
    })?;
    let status = answer.status();
    let body: Value = answer
        .json()
        .await
        .with_context(|| format!("{url} does not answer as a validator does"))?;
    if status.is_success() {
        return Ok(body);
    }
    let error = body
        .get("error")
        .and_then(Value::as_str)
        .unwrap_or("it cannot say");
    Err(anyhow!("the validator at {address}: {error}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validator_is_asked_by_ids_and_their_beginnings_and_the_facilitator_by_names() {
        let known = |text: &str| known_to_validators(&text.parse().unwrap());
        let id = "11111111-2222-4333-8444-555555555555";
        assert_eq!(known(id).as_deref(), Some(id));
        assert_eq!(known("3F0C").as_deref(), Some("3f0c"));
        assert_eq!(known("11111111-22").as_deref(), Some("11111111-22"));
        for text in ["@last", "train", "beginning"] {
            assert_eq!(known(text), None, "{text}");
        }
    }
}
