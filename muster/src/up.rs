//! `muster up`: the whole subnet on this machine, as child processes that are watched and stopped in order.

mod audits_plan;
mod demo;
mod demo_audits;
mod plan;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use muster_chain::ChainClient;
use muster_executor::docker_engine::ContainerEngine;
use muster_executor::image_archive::{ArchiveError, ImageArchive, ImageContent, ImageFile};
use muster_local_subnet::ports::{self, PortClaims};
use muster_local_subnet::programs::{self, Demonstration, ModelPrograms, Programs};
use muster_local_subnet::subnet_folder::{FolderLock, Layout, LocalSubnet};
use muster_local_subnet::supervise::{Program, Supervisor};
use muster_process::{Coded, SharedClock, Tasks, ready, shutdown};
use muster_protocol::{ErrorCode, ImageId, MinerKey};
use muster_terminal::print;

use self::audits_plan::AuditsPlan;
use self::demo::DemoSteps;
use self::plan::{DEMO_MODEL, Keys, LIMIT, NETUID, Setup};
use crate::cli::Up;
use crate::failure::{Failure, Result};

/// The name of the demo image in the engine.
const DEMO_IMAGE: &str = "muster/hello:latest";
/// The name of the grader's image.
const GRADER_IMAGE: &str = "muster/grader:latest";
/// The name of the image that a cheating executor of the demonstration runs instead.
const CHEATING_IMAGE: &str = "muster/cheating-grader:latest";
/// The images of the model in the demonstration of spot checks: the whitelisted one, one with another arithmetic, which
/// confirms convictions, and the cheating miner's.
const MODEL_IMAGE: &str = "muster/tiny-model:latest";
const SECOND_MODEL_IMAGE: &str = "muster/tiny-model-f16:latest";
const CHEATING_MODEL_IMAGE: &str = "muster/cheating-tiny-model:latest";
/// The milliseconds between blocks in a demonstration, at most: it waits for epochs, for a drawn batch and, in that of
/// spot checks, for buckets of 25 blocks.
const DEMO_BLOCK_MS: u64 = 200;

/// Starts the subnet and keeps it until Ctrl-C, or runs the demo job and stops.
pub(crate) async fn run(args: Up, tasks: Tasks, clock: SharedClock) -> Result<ExitCode> {
    let mut args = args;
    let is_demo = args.demo.is_some();
    if is_demo {
        args.block_ms = args.block_ms.min(DEMO_BLOCK_MS);
    }
    if args.demo == Some(Demonstration::Audits) {
        args.miners = 2;
        args.executors = 1;
    }
    let mut diary = DemoSteps::new(clock.clone(), args.json || !is_demo);
    let engine = ContainerEngine::connect("")
        .await
        .map_err(|error| Failure::coded(error.code(), error))?;
    diary.step(format!("Docker engine {} answers", engine.version()));
    let programs = programs::find_or_build(args.demo, &clock).await?;
    let layout = Layout::create(&args.dir)?;
    let _lock = FolderLock::take(&layout)?;
    let image = load_image(&engine, &layout, "hello", &programs.hello).await?;
    diary.step(format!("demo image {image} loaded"));
    let grader = load_image(&engine, &layout, "grader", &programs.grader).await?;

    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let keys = Keys::load_or_create(&layout, count(args.validators), count(args.miners))?;
    let earlier = LocalSubnet::read(&args.dir)?;
    // Held until the subnet ends.
    let mut claims = PortClaims::new()?;
    let subnet = plan::subnet(&layout, &keys, earlier.as_ref(), &mut claims)?;
    for line in claims.moved() {
        print::problem(format_args!("{line}"));
    }
    let audits = match &programs.model {
        Some(model) => Some(plan_audits(&engine, &layout, model, &mut claims).await?),
        None => None,
    };
    let setup = Setup {
        layout: &layout,
        subnet: &subnet,
        executors: args.executors,
        persistent: args.persistent,
        traces: args.traces.clone(),
        block_ms: args.block_ms,
        muster: std::env::current_exe().context("cannot find out where muster lies")?,
        user: &keys.user,
        image,
        services: args
            .services
            .as_deref()
            .map_or_else(|| Ok(Vec::new()), plan::services)?,
        grader,
        // A demonstration draws a batch as its last step, and shows those that it orders before.
        grade_every: if is_demo { 0 } else { args.grade_every },
        may_cheat: args.demo == Some(Demonstration::Subnet),
        audits,
    };
    write_everything(&setup, &keys, args.tempo)?;

    let mut supervisor = Supervisor::new(layout.clone(), tasks, clock, !is_demo);
    let ended = tokio::select! {
        ended = serve(&mut supervisor, &setup, &engine, &programs, diary, &keys, &args) => ended,
        signal = shutdown::wait_for_signal() => match signal {
            // To stop is how a subnet ends; a demo that is stopped has not shown what it was to show.
            Ok(_) if !is_demo => Ok(ExitCode::SUCCESS),
            Ok(signal) => Err(anyhow::anyhow!("stopped by {signal} before the demo was over").into()),
            Err(error) => Err(error.into()),
        },
    };
    supervisor.stop(hurried()).await;
    ended
}

/// Ends with a further signal: the user does not want to wait for the roles.
async fn hurried() {
    if shutdown::wait_for_signal().await.is_err() {
        std::future::pending::<()>().await;
    }
    print::problem(format_args!("the roles that still run are killed"));
}

/// Starts the roles in the order in which they need one another; then the demo, or until something fails.
async fn serve(
    supervisor: &mut Supervisor,
    setup: &Setup<'_>,
    engine: &ContainerEngine,
    programs: &Programs,
    mut diary: DemoSteps,
    keys: &Keys,
    args: &Up,
) -> Result<ExitCode> {
    let subnet = setup.subnet;
    diary.begin_limit();
    supervisor.start(chain_program(setup, &programs.chain));
    let listening = || std::net::TcpStream::connect(subnet.chain).ok();
    supervisor.wait_for("the chain", LIMIT, listening).await?;
    diary.step(format!("chain at {}", subnet.chain_url()));
    let miners = (0..subnet.miners().len()).map(plan::miner_name);
    let roles = std::iter::once("facilitator".to_owned())
        .chain(miners)
        .chain(setup.audits.is_some().then(|| audits_plan::TRUSTED.to_owned()))
        .chain((0..=subnet.further_validators.len()).map(plan::validator_name));
    start_cheat(supervisor, setup, engine, programs).await?;
    for role in roles {
        supervisor.start(role_program(setup, &role));
        let file = setup.layout.ready(&role);
        let address = supervisor
            .wait_for(&role, LIMIT, || ready::read(&file).ok().flatten())
            .await?;
        diary.step(format!("{role} at {address}"));
        if role == "facilitator" {
            let signer = signer(subnet).await?;
            for (name, config) in setup.further_validators(Some(&signer)) {
                plan::write_toml(&setup.layout.config(&name), &config)?;
            }
            let config = setup.validator(Some(signer), setup.grade_every);
            plan::write_toml(&setup.layout.config("validator"), &config)?;
        }
    }
    announced(supervisor, subnet).await?;
    diary.step("the addresses of the miners are on the chain");
    let served = supervisor.wait_until("the validator at its facilitator", LIMIT, || {
        serves_validators(subnet)
    });
    served.await?;
    diary.step("the validator is at its facilitator");
    subnet.write(setup.layout)?;
    let report = match (args.demo, &setup.audits) {
        (None, _) => {
            welcome(subnet, setup.layout, setup.grade_every);
            return Err(supervisor.failure().await);
        }
        (Some(_), Some(audits)) => tokio::select! {
            report = demo_audits::run(diary, setup, audits, keys) => serde_json::to_string_pretty(&report?)?,
            failure = supervisor.failure() => return Err(failure),
        },
        (Some(_), None) => tokio::select! {
            report = demo::run(diary, setup, NETUID, keys.user.clone(), signer(subnet).await?) => {
                serde_json::to_string_pretty(&report?)?
            }
            failure = supervisor.failure() => return Err(failure),
        },
    };
    if args.json {
        print::line(format_args!("{report}"));
    } else {
        print::line(format_args!("all of it happened"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the Docker engine of the executors that cheat, in a demonstration.
async fn start_cheat(
    supervisor: &mut Supervisor,
    setup: &Setup<'_>,
    engine: &ContainerEngine,
    programs: &Programs,
) -> Result {
    let Some(cheat) = &programs.cheat else {
        return Ok(());
    };
    let swapped = match &setup.audits {
        Some(audits) => (audits.image, audits.cheating_image),
        None => {
            let image = load_image(engine, setup.layout, "cheating-grader", &cheat.grader).await?;
            (setup.grader, image)
        }
    };
    supervisor.start(lying_engine(setup, &cheat.engine, swapped));
    let socket = setup.layout.cheat_socket();
    let listening = || std::os::unix::net::UnixStream::connect(&socket).ok();
    supervisor
        .wait_for("the engine of the cheating executor", LIMIT, listening)
        .await?;
    Ok(())
}

/// Loads both images of the model, and plans the miner of the validator's own.
async fn plan_audits(
    engine: &ContainerEngine,
    layout: &Layout,
    model: &ModelPrograms,
    claims: &mut PortClaims,
) -> Result<AuditsPlan> {
    let cheat = ["--cheat", "int4"];
    let honest = audits_plan::model_image(MODEL_IMAGE, &model.engine, model, &[])?;
    let cheating = audits_plan::model_image(CHEATING_MODEL_IMAGE, &model.cheating_engine, model, &cheat)?;
    let half_precision = ["--rounding", "f16"];
    let second = audits_plan::model_image(SECOND_MODEL_IMAGE, &model.engine, model, &half_precision)?;
    let (image, cheating_image, second_image) = (honest.id, cheating.id, second.id);
    for archive in [honest, cheating, second] {
        engine
            .load(archive.bytes)
            .await
            .map_err(|error| Failure::coded(error.code(), error))?;
    }
    audits_plan::write_files(layout, model, image)?;
    Ok(AuditsPlan {
        trusted: plan::hotkey(layout, audits_plan::TRUSTED)?,
        address: claims.claim(audits_plan::TRUSTED, None, ports::TRUSTED_MINER)?,
        image,
        cheating_image,
        second_image,
    })
}

/// Waits until the chain has the address of every miner: before that no validator can send it anything.
async fn announced(supervisor: &mut Supervisor, subnet: &LocalSubnet) -> Result {
    let unreachable = |error| Failure::new(ErrorCode::ChainUnreachable, error);
    let chain = ChainClient::connect(&subnet.chain_url())
        .await
        .map_err(unreachable)?;
    let mut blocks = chain.blocks().await.map_err(unreachable)?;
    let on_chain = async {
        loop {
            let metagraph = chain.metagraph(NETUID).await?;
            let is_announced = |(key, address): (MinerKey, SocketAddr)| {
                metagraph
                    .find(&key.0)
                    .is_some_and(|miner| miner.axon == Some(address))
            };
            if subnet.miners().into_iter().all(is_announced) {
                return Ok(());
            }
            blocks.next().await?;
        }
    };
    tokio::select! {
        found = on_chain => found.map_err(unreachable),
        failure = supervisor.failure() => Err(failure),
    }
}

/// The key with which the facilitator signs for those who have none.
async fn signer(subnet: &LocalSubnet) -> anyhow::Result<String> {
    #[derive(serde::Deserialize)]
    struct Health {
        hotkey: String,
    }
    let asked = reqwest::get(format!("{}/health", subnet.facilitator_url())).await?;
    let health: Health = asked
        .json()
        .await
        .context("the facilitator does not say who signs for it")?;
    Ok(health.hotkey)
}

/// Whether the facilitator has a validator to give jobs to.
async fn serves_validators(subnet: &LocalSubnet) -> bool {
    #[derive(serde::Deserialize)]
    struct Health {
        validators: u64,
    }
    let asked = reqwest::get(format!("{}/health", subnet.facilitator_url())).await;
    let Ok(answer) = asked else { return false };
    answer
        .json::<Health>()
        .await
        .is_ok_and(|health| health.validators > 0)
}

fn welcome(subnet: &LocalSubnet, layout: &Layout, grade_every: u64) {
    // Commands look into this folder by themselves.
    let is_found = std::fs::canonicalize(".muster").is_ok_and(|usual| usual == layout.root());
    let dir = match is_found {
        true => String::new(),
        false => format!(" --dir {}", layout.root().display()),
    };
    print::line(format_args!("the subnet is up; Ctrl-C stops it"));
    print::line(format_args!("  facilitator   {}", subnet.facilitator_url()));
    print::line(format_args!(
        "  web page      {}/ (`muster login --web` prints a link that signs a browser in)",
        subnet.facilitator_url()
    ));
    print::line(format_args!(
        "  validator     {} http://{}/v0/state",
        subnet.validator, subnet.validator_status
    ));
    for validator in &subnet.further_validators {
        print::line(format_args!(
            "  validator     {} http://{}/v0/state",
            validator.key, validator.status
        ));
    }
    for (miner, address) in subnet.miners() {
        print::line(format_args!("  miner         {miner} at {address}"));
    }
    for (name, address) in &subnet.operators {
        print::line(format_args!("  operator      http://{address}/ of the {name}"));
    }
    print::line(format_args!("  chain         {}", subnet.chain_url()));
    print::line(format_args!(
        "  grading       {}",
        plan::grading_in_words(grade_every)
    ));
    print::line(format_args!(
        "  here only: its facilitator lets gateways and webhooks have addresses of this machine ({}), and its executors \
         run every image of this machine's engine and fetch from registries on its loopback",
        plan::LOCAL
    ));
    print::line(format_args!(
        "try: muster job run{dir} {DEMO_IMAGE} --input text.txt=/etc/os-release -- words"
    ));
    print::line(format_args!(
        "     muster chat{dir} {DEMO_MODEL} -m 'Polly wants a cracker' --max-tokens 12"
    ));
}

fn chain_program(setup: &Setup<'_>, chain: &std::path::Path) -> Program {
    let mut command = vec![chain.to_owned()];
    command.extend(["--port".into(), setup.subnet.chain.port().to_string().into()]);
    command.extend(["--spec".into(), setup.layout.genesis()]);
    command.extend([
        "--block-time-ms".into(),
        setup.block_ms.to_string().into(),
        "--lifeline".into(),
    ]);
    Program {
        name: "chain".to_owned(),
        command,
        restart: false,
        has_executors: false,
    }
}

/// The Docker engine of the cheating executor: it runs the image `given` for the one that is asked for.
fn lying_engine(setup: &Setup<'_>, engine: &std::path::Path, (asked, given): (ImageId, ImageId)) -> Program {
    let command = vec![
        engine.to_owned(),
        "--socket".into(),
        setup.layout.cheat_socket(),
        "--asked".into(),
        asked.0.hex().into(),
        "--given".into(),
        given.0.hex().into(),
    ];
    Program {
        name: "cheat".to_owned(),
        command,
        restart: false,
        has_executors: false,
    }
}

/// The process of a role; `name` is `miner-2` for the second miner.
fn role_program(setup: &Setup<'_>, name: &str) -> Program {
    let role = match name {
        audits_plan::TRUSTED => "miner",
        _ => name.split('-').next().unwrap_or(name),
    };
    let config = setup.layout.config(name);
    let mut command = vec![
        setup.muster.clone(),
        role.into(),
        "--config".into(),
        config,
        "--lifeline".into(),
    ];
    if let Some(address) = setup.subnet.metrics_of(name) {
        command.extend(["--metrics".into(), address.to_string().into()]);
    }
    command.extend(setup.trace_arguments().into_iter().map(PathBuf::from));
    Program {
        name: name.to_owned(),
        command,
        restart: true,
        has_executors: role == "miner",
    }
}

/// Genesis and configurations; the ready files of an earlier run go.
fn write_everything(setup: &Setup<'_>, keys: &Keys, tempo: u16) -> Result {
    let genesis = serde_json::to_string_pretty(&plan::genesis(keys, tempo))?;
    std::fs::write(setup.layout.genesis(), genesis).context("cannot write the genesis")?;
    setup.layout.rotate_log("chain")?;
    for (role, config) in setup.configurations() {
        setup.layout.rotate_log(&role)?;
        plan::write_toml(&setup.layout.config(&role), &config)?;
        match std::fs::remove_file(setup.layout.ready(&role)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Writes the archive of an image of ours and loads it, also where the engine has it: its name may have moved on.
async fn load_image(
    engine: &ContainerEngine,
    layout: &Layout,
    name: &str,
    program: &std::path::Path,
) -> Result<ImageId> {
    let binary = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let archive = match name {
        "grader" => one_program(GRADER_IMAGE, "/grader", &[], binary),
        "cheating-grader" => one_program(CHEATING_IMAGE, "/grader", &[], binary),
        _ => one_program(DEMO_IMAGE, "/hello", &["words"], binary),
    };
    let archive = archive.map_err(|error| Failure::new(ErrorCode::BuildFailed, error))?;
    std::fs::write(layout.image(name), &archive.bytes).context("cannot write an image")?;
    engine
        .load(archive.bytes)
        .await
        .map_err(|error| Failure::coded(error.code(), error))?;
    Ok(archive.id)
}

/// An image of one static program, run as nobody.
fn one_program(
    tag: &str,
    path: &str,
    command: &[&str],
    program: Vec<u8>,
) -> std::result::Result<ImageArchive, ArchiveError> {
    ImageArchive::new(&ImageContent {
        tag: tag.to_owned(),
        files: vec![ImageFile {
            path: path.to_owned(),
            mode: 0o755,
            contents: program,
        }],
        entrypoint: vec![path.to_owned()],
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        ..ImageContent::default()
    })
}
