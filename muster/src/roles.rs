//! The roles as processes: configuration, logs, signals, and then the role's own library.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use muster_executor::{Invocation, OwnEngine, OwnEngineOptions};
use muster_process::telemetry;
use muster_process::telemetry::catalogue::MetricRole;
use muster_process::{Coded, SharedClock, Tasks, shutdown};
use muster_protocol::ErrorCode;
use muster_terminal::print;
use tokio::io::AsyncReadExt as _;
use url::Url;

use crate::cli::{Executor, ExecutorCommand, LogForm, ManifestEngine, Miner, MinerCommand, Role};
use crate::drain;
use crate::executor_registry::RegistryOrder;
use crate::failure::{Failure, Result};
use crate::role_config::{configure, ensure_store, read_config};

/// How long a role may take to end its connections and writes after it was asked to stop.
const GRACE: Duration = Duration::from_secs(10);

/// The link to the program of this process, also after another one was installed under its name.
const PROGRAM: &str = "/proc/self/exe";

/// `muster facilitator`.
pub(crate) async fn facilitator(args: Role, tasks: Tasks, clock: SharedClock) -> Result<ExitCode> {
    let Some(config) = configure::<muster_facilitator::Config>("facilitator", &args.file)? else {
        return Ok(ExitCode::SUCCESS);
    };
    prepare("facilitator", args.report.log_format, &tasks, args.lifeline)?;
    measure(MetricRole::Facilitator, args.metrics, &tasks, &clock).await?;
    trace("facilitator", args.report.traces.as_ref(), &tasks, &clock)?;
    finish(
        muster_facilitator::run(config, tasks.clone(), clock).await,
        &tasks,
    )
    .await
}

/// `muster validator`.
pub(crate) async fn validator(args: Role, tasks: Tasks, clock: SharedClock) -> Result<ExitCode> {
    let Some(config) = configure::<muster_validator::Config>("validator", &args.file)? else {
        return Ok(ExitCode::SUCCESS);
    };
    prepare("validator", args.report.log_format, &tasks, args.lifeline)?;
    measure(MetricRole::Validator, args.metrics, &tasks, &clock).await?;
    trace("validator", args.report.traces.as_ref(), &tasks, &clock)?;
    finish(muster_validator::run(config, tasks.clone(), clock).await, &tasks).await
}

/// `muster miner`.
pub(crate) async fn miner(args: Miner, tasks: Tasks, clock: SharedClock) -> Result<ExitCode> {
    let Miner { role, command, .. } = &args;
    if let Some(MinerCommand::Drain(asked)) = command {
        return drain::miner(asked, &clock).await;
    }
    if let Some(MinerCommand::Manifests(asked)) = command {
        let ManifestEngine::Kubernetes(asked) = &asked.engine;
        print::raw(&asked.text().map_err(unusable)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(MinerCommand::RotateCertificate(asked)) = command {
        let config: muster_miner::Config = read_config(asked.config.as_deref())?;
        ensure_store(&config.store)?;
        let digest = muster_miner::certificate::rotate(&config.tls).map_err(unusable)?;
        print::raw(&format!(
            "the new certificate is {digest}; a running miner serves and announces it within seconds, and serves the one \
             before it to those that still know that one\n"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(MinerCommand::Evidence(asked)) = command {
        let config: muster_miner::Config = read_config(asked.config())?;
        ensure_store(&config.store)?;
        print::raw(&asked.answer(&config.store, &config.wallet, clock.now()).await?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(order) = RegistryOrder::of(&args).filter(|_| !role.file.print_config) {
        return order.carry_out(&clock);
    }
    let Some(config) = configure::<muster_miner::Config>("miner", &role.file)? else {
        return Ok(ExitCode::SUCCESS);
    };
    prepare("miner", role.report.log_format, &tasks, role.lifeline)?;
    measure(MetricRole::Miner, role.metrics, &tasks, &clock).await?;
    trace("miner", role.report.traces.as_ref(), &tasks, &clock)?;
    finish(muster_miner::run(config, tasks.clone(), clock).await, &tasks).await
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::coded(None, error)
}

/// `muster executor`.
pub(crate) async fn executor(args: Executor, tasks: Tasks, clock: SharedClock) -> Result<ExitCode> {
    match &args.command {
        Some(ExecutorCommand::Drain(asked)) => return drain::executor(asked, &clock).await,
        Some(ExecutorCommand::Collect) => {
            muster_executor::collect().await.map_err(unusable)?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    let configured = configure::<muster_executor::Config>("executor", &args.file)?;
    let Some(mut config) = configured else {
        return Ok(ExitCode::SUCCESS);
    };
    // This very program, also after another one was installed.
    config.collector = Some(PROGRAM.into());
    prepare("executor", args.report.log_format, &tasks, false)?;
    measure(MetricRole::Executor, args.metrics, &tasks, &clock).await?;
    trace("executor", args.report.traces.as_ref(), &tasks, &clock)?;
    let mut engine = None;
    if args.with_engine {
        match OwnEngine::start(OwnEngineOptions::default(), &mut config, &tasks, &clock).await {
            Ok(started) => engine = Some(started),
            Err(error) => return finish(Err(muster_executor::Error::from(error)), &tasks).await,
        }
    }
    let ended = if let Some(invitation) = args.enroll {
        muster_executor::persistent::enroll(&config, invitation, &args.name).await
    } else if args.persistent {
        let program = args.end_when_replaced.then(|| PROGRAM.into());
        muster_executor::persistent::serve(config, program, tasks.clone(), clock).await
    } else {
        let (Some(miner_address), Some(token)) = (args.miner_address, args.token) else {
            return Err(Failure::usage("an executor needs --miner-address and --token"));
        };
        let invocation = Invocation { miner_address, token };
        muster_executor::run(config, invocation, tasks.clone(), clock).await
    };
    if let Some(engine) = engine {
        engine.stop().await;
    }
    let ended = match ended {
        // Validators end their own jobs so, each batch of grading among them.
        Err(muster_executor::Error::Cancelled(reason)) => {
            tracing::info!(reason, "the job was called off");
            Ok(())
        }
        ended => ended,
    };
    finish(ended, &tasks).await
}

/// Logs, signals and the tie to a supervisor.
fn prepare(role: &'static str, form: LogForm, tasks: &Tasks, lifeline: bool) -> Result {
    telemetry::init(role, form.into())?;
    let stopping = tasks.clone();
    // Neither task is waited for: both end with the process.
    tasks.spawn("wait for a signal", async move {
        tokio::select! {
            signal = shutdown::wait_for_signal() => {
                stopping.shutdown();
                match signal {
                    Ok(signal) => tracing::info!(%signal, "stopping"),
                    Err(error) => tracing::error!(%error, "signals cannot be handled; stopping"),
                }
            }
            () = stopping.token().cancelled_owned() => {}
        }
    });
    if lifeline {
        let stopping = tasks.clone();
        tasks.spawn("watch the lifeline", async move {
            let mut ignored = [0; 64];
            let mut stdin = tokio::io::stdin();
            let token = stopping.token();
            let supervised =
                async { while matches!(stdin.read(&mut ignored).await, Ok(read) if read > 0) {} };
            tokio::select! {
                () = supervised => {
                    stopping.shutdown();
                    tracing::info!("the supervisor is gone; stopping");
                }
                () = token.cancelled() => {}
            }
        });
    }
    Ok(())
}

/// Serves the process's figures, if they are asked for.
async fn measure(
    role: MetricRole,
    address: Option<SocketAddr>,
    tasks: &Tasks,
    clock: &SharedClock,
) -> Result {
    let Some(address) = address else { return Ok(()) };
    let bound = telemetry::serve_metrics(role, address, tasks, SharedClock::clone(clock))
        .await
        .map_err(|error| Failure::coded(error.code(), error))?;
    tracing::info!(address = %bound, "metrics are served at /metrics");
    Ok(())
}

/// Exports the process's spans, if that is asked for.
fn trace(role: &'static str, collector: Option<&Url>, tasks: &Tasks, clock: &SharedClock) -> Result {
    let Some(collector) = collector else { return Ok(()) };
    muster_span_export::start(role, collector.clone(), tasks, SharedClock::clone(clock))
        .map_err(Failure::usage)
}

/// Waits for what the role left behind, and turns its error into words.
async fn finish<E: Coded + Send + Sync + 'static>(
    ended: std::result::Result<(), E>,
    tasks: &Tasks,
) -> Result<ExitCode> {
    tasks.shutdown();
    let code = ended.as_ref().err().and_then(Coded::code);
    // Another process leads: nothing that is left here may go on.
    let grace = if code == Some(ErrorCode::NotLeading) {
        Duration::ZERO
    } else {
        GRACE
    };
    if let Err(late) = tasks.wait(grace).await {
        tracing::warn!("{late}");
    }
    ended.map_err(|error| Failure::coded(error.code(), error))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_session_of_a_default_validator_fits_the_time_beyond_a_share_of_a_default_miner() {
        let (validator, miner) = (
            muster_validator::Config::default(),
            muster_miner::Config::default(),
        );
        let gateway = &validator.gateway;
        // The times for the inputs and outputs that a session does not have are less than a minute.
        let lasts = gateway.session_s + gateway.start_s + validator.timing.leeway_s + 60;
        assert!(
            lasts <= miner.shares.beyond_s,
            "a session may last {lasts} s, and beyond a share a job of {} s is taken",
            miner.shares.beyond_s
        );
    }
}
