//! `muster doctor`: gathers facts about this machine, has them judged, prints the verdicts.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::OptionFuture;
use muster_chain::ChainClient;
use muster_client::Credential;
use muster_doctor::machine_verdict::{
    ClockFacts, DiskFacts, EngineFacts, GpuFacts, HardwareFacts, LoginFacts, MachineFacts, PortFacts,
    Purpose, RemoteFacts, Severity, is_example, judge, worst_severity,
};
use muster_executor::machine::specs::read_machine_size;
use muster_executor::sized_disk::try_out;
use muster_process::SharedClock;
use muster_terminal::print;
use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;

use muster_local_subnet::subnet_folder::LocalSubnet;

use crate::cli::Doctor;
use crate::cli::user::Who;
use crate::facilitator_access;
use crate::failure::{Failure, Result};
use crate::role_config::look_at_config;

/// The time limit of each check, since its user is in trouble already.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where the roles listen by default.
const PORTS: [(&str, &str); 3] = [
    ("facilitator", "127.0.0.1:8090"),
    ("validator", "127.0.0.1:8091"),
    ("miner", "127.0.0.1:8092"),
];
const NOT_A_MINER: &str = "--config is a miner's configuration: say --for miner";
const GPU_DEVICE: &str = "/dev/nvidiactl";

/// Runs it: exit code 0 unless something fails.
pub(crate) async fn run(args: Doctor, clock: SharedClock) -> Result<ExitCode> {
    let purpose = match args.who {
        Who::Up => Purpose::Up,
        Who::User => Purpose::User,
        Who::Miner => Purpose::Miner,
        Who::Validator => Purpose::Validator,
        Who::Facilitator => Purpose::Facilitator,
    };
    let facts = gather(&args, purpose, &clock).await?;
    let verdicts = judge(&facts, purpose);
    let ended = ExitCode::from(u8::from(worst_severity(&verdicts) == Severity::Failure));
    if args.json {
        let report = json!({"verdicts": verdicts, "facts": facts});
        print::line(format_args!("{}", serde_json::to_string_pretty(&report)?));
        return Ok(ended);
    }
    for verdict in &verdicts {
        let (state, check, says) = (&verdict.state, &verdict.check, &verdict.says);
        print::line(format_args!("{state:<8} {check:<12} {says}"));
        if !verdict.advice.is_empty() {
            print::line(format_args!("{:21} {}", "", verdict.advice));
        }
        if let Some(code) = verdict.code {
            print::line(format_args!("{:21} `muster explain {code}` says more", ""));
        }
    }
    Ok(ended)
}

async fn gather(args: &Doctor, purpose: Purpose, clock: &SharedClock) -> Result<MachineFacts> {
    let subnet = LocalSubnet::read(&args.access.dir)?;
    let target = facilitator_access::resolve(&args.access);
    let (url, login) = match &target {
        Ok(target) => {
            let whom = match &target.credential {
                Credential::Hotkey(pair) => format!("hotkey {}", pair.hotkey()),
                Credential::Key(_) => "an API key".to_owned(),
            };
            (
                Some(target.facilitator.to_string()),
                LoginFacts {
                    whom: Some(whom),
                    error: None,
                },
            )
        }
        Err(failure) => {
            let error = Some(failure.to_string());
            (
                args.access.facilitator.as_ref().map(ToString::to_string),
                LoginFacts { whom: None, error },
            )
        }
    };
    let config = match args.config.as_deref() {
        None => None,
        Some(_) if purpose != Purpose::Miner => return Err(Failure::usage(NOT_A_MINER)),
        path => Some(look_at_config::<muster_miner::Config>(path)?),
    };
    let configured = config.as_ref().map(|config| config.chain.url.clone());
    let known = subnet.as_ref().map(LocalSubnet::chain_url);
    let configured = configured.filter(|url| !url.is_empty());
    let chain = args.chain.clone().or(configured).or(known);
    let (engine, (facilitator, ahead_s), chain, synchronised, gpu) = tokio::join!(
        engine(),
        facilitator(url, clock),
        chain_at(chain),
        synchronised(),
        gpu(),
    );
    let ask = |config| muster_doctor::gather(config, clock);
    let miner = OptionFuture::from(config.as_ref().map(ask)).await;
    // The port of a miner that answers is its own.
    let ports = match &miner {
        Some(miner) if miner.unanswered.is_none() => Vec::new(),
        Some(_) | None => ports(purpose, config.map(|config| config.bind)),
    };
    Ok(MachineFacts {
        miner,
        engine,
        disk: disk(&args.disk, purpose),
        ports,
        clock: ClockFacts {
            synchronised,
            ahead_s,
        },
        chain,
        facilitator,
        login,
        gpu,
        hardware: hardware(),
    })
}

fn hardware() -> HardwareFacts {
    let size = read_machine_size();
    HardwareFacts {
        cpus: size.cpus,
        memory: size.memory,
    }
}

/// The first line of an error with all its causes.
fn words(error: impl Into<anyhow::Error>) -> String {
    let text = format!("{:#}", error.into());
    text.lines().next().unwrap_or_default().to_owned()
}

async fn engine() -> EngineFacts {
    let asked = tokio::time::timeout(
        PATIENCE,
        muster_executor::docker_engine::ContainerEngine::connect(""),
    )
    .await;
    match asked {
        Ok(Ok(engine)) => {
            let store = tokio::time::timeout(PATIENCE, engine.names_images_by_manifest()).await;
            EngineFacts {
                version: Some(engine.version().to_owned()),
                by_manifest: store.ok().and_then(|asked| asked.ok()),
                podman: engine.is_podman(),
                error: None,
            }
        }
        Ok(Err(error)) => EngineFacts {
            error: Some(words(error)),
            ..EngineFacts::default()
        },
        Err(_) => EngineFacts {
            error: Some("it does not answer in time".to_owned()),
            ..EngineFacts::default()
        },
    }
}

fn disk(folder: &Path, purpose: Purpose) -> DiskFacts {
    let looked = nix::sys::statvfs::statvfs(folder);
    let tried = purpose.runs_jobs().then(|| try_out(folder, ""));
    DiskFacts {
        sized: tried.as_ref().map(std::result::Result::is_ok),
        gives_files: purpose.runs_jobs().then(|| nix::unistd::geteuid().is_root()),
        unsized_because: tried.and_then(std::result::Result::err).map(words),
        folder: folder.display().to_string(),
        free: looked
            .as_ref()
            .ok()
            .map(|found| found.blocks_available().saturating_mul(found.fragment_size())),
        error: looked.err().map(|error| error.to_string()),
    }
}

fn ports(purpose: Purpose, configured: Option<SocketAddr>) -> Vec<PortFacts> {
    let needed = |role: &str| match purpose {
        Purpose::Up => true,
        Purpose::User => false,
        Purpose::Miner => role == "miner",
        Purpose::Validator => role == "validator",
        Purpose::Facilitator => role == "facilitator",
    };
    PORTS
        .iter()
        .filter(|(role, _)| needed(role))
        .map(|(role, default)| {
            let address = configured.map_or_else(|| (*default).to_owned(), |own| own.to_string());
            PortFacts {
                role: (*role).to_owned(),
                error: TcpListener::bind(&address).err().map(|error| error.to_string()),
                address,
            }
        })
        .collect()
}

/// A facilitator's description, and the number of milliseconds by which this clock is ahead of its own.
async fn facilitator(url: Option<String>, clock: &SharedClock) -> (Option<RemoteFacts>, Option<i64>) {
    let Some(url) = url else { return (None, None) };
    if is_example(&url) {
        return (Some(unasked(url)), None);
    }
    let sent = clock.now();
    let asking = async {
        let http = reqwest::Client::builder().timeout(PATIENCE).build()?;
        http.get(format!("{url}/health")).send().await?.error_for_status()
    };
    match asking.await {
        Ok(answer) => {
            let middle = sent.plus(clock.now().since(sent) / 2);
            let date = answer.headers().get(reqwest::header::DATE);
            let theirs = date
                .and_then(|value| chrono::DateTime::parse_from_rfc2822(value.to_str().ok()?).ok())
                .map(|date| date.timestamp());
            let ahead = theirs.map(|theirs| middle.secs() - theirs);
            let (says, error) = match answer.json().await {
                Ok(health) => (Some(describe_health(&health)), None),
                Err(_) => (None, Some("its answer is not that of a facilitator".to_owned())),
            };
            (Some(RemoteFacts { url, says, error }), ahead)
        }
        Err(error) => {
            let error = Some(words(error.without_url()));
            (
                Some(RemoteFacts {
                    url,
                    says: None,
                    error,
                }),
                None,
            )
        }
    }
}

/// The part of a facilitator's `/health` that is read.
#[derive(Debug, Deserialize)]
struct FacilitatorHealth {
    validators: u64,
}

fn describe_health(health: &FacilitatorHealth) -> String {
    match health.validators {
        1 => "1 validator is connected".to_owned(),
        validators => format!("{validators} validators are connected"),
    }
}

/// A service that is not asked, because its address is an example.
fn unasked(url: String) -> RemoteFacts {
    RemoteFacts {
        url,
        ..RemoteFacts::default()
    }
}

async fn chain_at(url: Option<String>) -> Option<RemoteFacts> {
    let url = url?;
    if is_example(&url) {
        return Some(unasked(url));
    }
    let asking = async {
        let chain = ChainClient::connect(&url).await?;
        chain.head().await
    };
    let (says, error) = match tokio::time::timeout(PATIENCE, asking).await {
        Ok(Ok(head)) => (Some(format!("block {}", head.0)), None),
        Ok(Err(error)) => (None, Some(words(error))),
        Err(_) => (None, Some("it does not answer in time".to_owned())),
    };
    Some(RemoteFacts { url, says, error })
}

/// The output of a tool; an error where there is no such tool, or it fails.
async fn run_program(program: &str, args: &[&str]) -> std::result::Result<String, String> {
    let asked = Command::new(program).args(args).kill_on_drop(true).output();
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(output)) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or_default();
            Err(format!("{program} ended with {}: {said}", output.status))
        }
        Ok(Err(error)) => Err(format!("{program}: {error}")),
        Err(_) => Err(format!("{program} does not answer in time")),
    }
}

/// Whether the system keeps the clock in step, where it reports that.
async fn synchronised() -> Option<bool> {
    let asked = run_program("timedatectl", &["show", "--property=NTPSynchronized", "--value"]).await;
    match asked.as_deref() {
        Ok("yes") => Some(true),
        Ok("no") => Some(false),
        Ok(_) | Err(_) => None,
    }
}

async fn gpu() -> GpuFacts {
    let device = Path::new(GPU_DEVICE).exists();
    let query = [
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ];
    let (found, toolkit) = tokio::join!(
        run_program("nvidia-smi", &query),
        run_program("nvidia-ctk", &["--version"])
    );
    let lines = |text: &str| text.lines().map(str::to_owned).collect();
    GpuFacts {
        device,
        found: found.as_deref().map(lines).unwrap_or_default(),
        error: found.err(),
        // "NVIDIA Container Toolkit CLI version 1.17.8", and a line about the commit.
        toolkit: toolkit.ok().and_then(|text| {
            let line = text.lines().next()?.to_owned();
            line.rsplit(' ').next().map(str::to_owned)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_example_is_not_asked_and_its_service_has_nothing_to_say() {
        let chain = chain_at(Some("wss://chain.example:443".to_owned()))
            .await
            .unwrap();
        assert_eq!((chain.says, chain.error), (None, None));
        let clock: SharedClock = std::sync::Arc::new(muster_process::SystemClock::default());
        let (asked, ahead_s) = facilitator(Some("https://HOST".to_owned()), &clock).await;
        assert_eq!((asked.unwrap().says, ahead_s), (None, None));
    }

    #[test]
    fn a_facilitators_health_is_told_as_a_sentence() {
        let told = |text: &str| describe_health(&serde_json::from_str(text).unwrap());
        assert_eq!(
            told(r#"{"validators": 1, "hotkey": "5F"}"#),
            "1 validator is connected"
        );
        assert_eq!(told(r#"{"validators": 3}"#), "3 validators are connected");
    }
}
