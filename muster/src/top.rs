//! `muster top`: finds what its options name, and hands it to `muster-monitor`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use muster_monitor::run::{has_terminal, run as watch};
use muster_monitor::sources::{RoleStatus, StatusSource};
use muster_process::operator_token::OperatorToken;
use muster_process::{SharedClock, Tasks};

use crate::cli::{Top, Watched};
use crate::facilitator_access::{self, client_failure};
use crate::failure::{Failure, Result};
use muster_local_subnet::subnet_folder::{Layout, LocalSubnet};

/// Runs `muster top` until its user, a signal or the end of the terminal ends it.
pub(crate) async fn run(args: Top, tasks: Tasks, clock: SharedClock) -> Result<ExitCode> {
    if !has_terminal() {
        return Err(Failure::usage(
            "muster top needs a terminal; `muster job ls --json` and the status pages are for programs",
        ));
    }
    let every = Duration::from_secs(args.every);
    let source = open(args, &clock).await?;
    let ended = watch(source, every, &tasks, clock).await;
    ended.map_err(|error| Failure::coded(None, error))?;
    Ok(ExitCode::SUCCESS)
}

/// The source that the options name: the local subnet's, if they name no address.
async fn open(args: Top, clock: &SharedClock) -> Result<StatusSource> {
    let subnet = LocalSubnet::read(&args.access.dir)?;
    match args.watched {
        Watched::Validator => {
            let local = subnet.as_ref().map(|subnet| subnet.validator_status);
            let address = args.at.or(local).ok_or_else(|| no_address("validator", "bind"))?;
            Ok(StatusSource::Validator(role(
                address,
                args.token_file.as_deref(),
            )?))
        }
        Watched::Miner => {
            let local = subnet.as_ref().and_then(|subnet| subnet.operator_of("miner"));
            let address = args
                .at
                .or(local)
                .ok_or_else(|| no_address("miner", "operator.bind"))?;
            let token: Option<PathBuf> = match (args.token_file, args.at) {
                (Some(file), _) => Some(file),
                (None, None) => Some(Layout::create(&args.access.dir)?.miner_token("miner")),
                (None, Some(_)) => None,
            };
            Ok(StatusSource::Miner(role(address, token.as_deref())?))
        }
        Watched::Jobs => {
            let access = facilitator_access::resolve(&args.access)?;
            let client = access.connect(SharedClock::clone(clock)).await?;
            let account = client.account().await.map_err(client_failure)?.account;
            Ok(StatusSource::User {
                client: Box::new(client),
                account,
            })
        }
    }
}

fn role(address: SocketAddr, token_file: Option<&Path>) -> Result<RoleStatus> {
    let token = token_file.map(OperatorToken::read).transpose();
    let token = token.map_err(|error| Failure::coded(None, error))?;
    Ok(RoleStatus::new(address, token.as_ref())?)
}

fn no_address(role: &str, key: &str) -> Failure {
    Failure::usage(format_args!(
        "no {role}: give --at with the address in its configuration's `{key}`, or run `muster up` here first"
    ))
}
