//! `muster grade`: what executors have proven, why one is worth nothing, and the validator's own checks on this machine
//! or on a batch's file.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use muster_grading::ObservationKind;
use muster_grading::batch_file::BatchFile;
use muster_grading::batch_plan::Participant;
use muster_grading::grade_spec::{GradeSpec, ProofShape, Trial};
use muster_grading::judgement::{Judgement, Why};
use muster_grading::replay::replay;
use muster_grading::thresholds::ThresholdsFile;
use muster_grading::trial_result::{TrialResult, judge_participant};
use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce};
use muster_hardware_proof::conversation::{
    ChallengeRejection, ExecutorCommand, ExecutorConversation, ProverLimits, ValidatorAction,
    ValidatorConversation, ValidatorInput,
};
use muster_hardware_proof::grade::MachineRuns;
use muster_hardware_proof::prover::{
    CpuProver, NoObserver, Prover, ProverError, available_threads, perform_task,
};
use muster_hardware_proof::spec::{NumberFormat, WalkMemory};
use muster_hardware_proof::{Evidence, InstructionSet, Measurement, ProofVerdict};
use muster_process::operator_token::OperatorToken;
use muster_protocol::{ExecutorClass, Hotkey, MinerKey};
use muster_terminal::print;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cli::{Grade, GradeExplain, GradeReplay, GradeRun, GradeSelf, ListNewest, ValidatorOrder};
use crate::failure::{Failure, Result};
use crate::validator;

/// A batch takes as long as its slowest class.
const BATCH_PATIENCE: Duration = Duration::from_secs(3_600);
/// Larger than the evidence about one miner's executors.
const MAX_FILE: u64 = 4 << 30;
/// A class whose floor is this many times what a short probe showed is not tried in full.
const HOPELESS: u64 = 2;
/// The most memory that a proof on this machine may take.
const CAPS: ProverLimits = ProverLimits {
    log2_n: 16,
    memory_bytes: 1 << 40,
    work: 4_096,
    read_bytes: 1 << 50,
};

/// The result of one executor in a batch, as a validator serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Graded {
    batch: String,
    block: u64,
    place: u64,
    pub(crate) miner: MinerKey,
    /// None of a miner that did not state what it has.
    pub(crate) class: Option<ExecutorClass>,
    pub(crate) index: u64,
    pub(crate) judgement: Judgement,
    pub(crate) said: String,
}

#[derive(Debug, Deserialize)]
struct Grades {
    grades: Vec<Graded>,
}

#[derive(Debug, Deserialize)]
struct Began {
    batch: String,
}

/// Runs the command.
pub(crate) async fn run(command: Grade) -> Result<ExitCode> {
    match command {
        Grade::Own(args) => own(args).await,
        Grade::Run(args) => now(args).await,
        Grade::Ls(args) => list(args).await,
        Grade::Explain(args) => explain(args).await,
        Grade::Replay(args) => again(args).await,
    }
}

async fn now(args: ValidatorOrder<GradeRun>) -> Result<ExitCode> {
    let (at, token) = validator::operator_of(&args.token_file, &args.of)?;
    let kind = match args.order.unannounced {
        true => ObservationKind::Unannounced,
        false => ObservationKind::Announced,
    };
    let file = batch(at, &token, kind).await?;
    if args.of.json {
        print::line(format_args!(
            "{}",
            serde_json::to_string_pretty(&file.judgements)?
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let plan = muster_grading::batch_plan::draw_batch(
        file.head.kind,
        &file.head.hash,
        file.head.validator,
        &file.head.announced,
        file.head.bounds,
    );
    let id = hex::encode(plan.id.0);
    print::line(format_args!("batch {id} of block {}", file.head.block));
    let executors = plan
        .participants
        .iter()
        .map(|seat| (seat.miner, seat.class.to_string(), seat.index.to_string()));
    let silent = file.head.silent.iter();
    let silent = silent.map(|silent| (silent.miner, "-".to_owned(), "-".to_owned()));
    let rows = executors
        .chain(silent)
        .zip(&file.judgements)
        .map(|((miner, class, index), judgement)| {
            vec![miner.to_string(), class, index, judgement.to_string()]
        });
    print::table(&["miner", "class", "executor", "grade"], rows);
    Ok(ExitCode::SUCCESS)
}

/// Has a validator run a batch now; its whole file, once everybody in it is judged.
pub(crate) async fn batch(at: SocketAddr, token: &OperatorToken, kind: ObservationKind) -> Result<BatchFile> {
    let client = reqwest::Client::builder()
        .timeout(BATCH_PATIENCE)
        .no_proxy()
        .build()?;
    let request = client
        .post(format!("http://{at}/v0/batches"))
        .query(&[("kind", kind)]);
    let answer = request
        .header("authorization", token.authorization())
        .send()
        .await;
    let answer = answer.with_context(|| format!("no validator answers at {at}"))?;
    let ran = answer.status().is_success();
    let body: Value = answer
        .json()
        .await
        .context("the validator is of another version")?;
    if !ran {
        let error = body.get("error").and_then(Value::as_str);
        return Err(anyhow!("the validator at {at}: {}", error.unwrap_or("it cannot say")).into());
    }
    let Began { batch } = serde_json::from_value(body).context("the validator is of another version")?;
    read_batch(at, &batch).await
}

/// The file of a batch.
pub(crate) async fn read_batch(at: SocketAddr, id: &str) -> Result<BatchFile> {
    let file = validator::ask(at, &format!("/v0/batches/{id}")).await?;
    Ok(serde_json::from_value(file).context("the validator is of another version")?)
}

/// The ids of a validator's newest batches that are judged.
pub(crate) async fn batches(at: SocketAddr) -> Result<BTreeSet<String>> {
    let body = validator::ask(at, "/v0/batches?limit=50").await?;
    let batches = body.get("batches").and_then(Value::as_array);
    let judged = batches.into_iter().flatten().filter_map(|batch| {
        let text = |name| batch.get(name).and_then(Value::as_str);
        (text("state") == Some("done")).then(|| text("batch").map(str::to_owned))?
    });
    Ok(judged.collect())
}

async fn list(args: ListNewest) -> Result<ExitCode> {
    let at = validator::address(args.of.state, &args.of.dir)?;
    let body = validator::ask(at, &format!("/v0/batches?limit={}", args.limit)).await?;
    if args.of.json {
        print::line(format_args!("{body:#}"));
        return Ok(ExitCode::SUCCESS);
    }
    let batches = body.get("batches").and_then(Value::as_array).cloned();
    let rows = batches.unwrap_or_default().into_iter().map(|batch| {
        let text = |name: &str| match batch.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let count = |name: &str| {
            let grades = batch.get("grades").and_then(|grades| grades.get(name));
            grades.map_or_else(|| "0".to_owned(), ToString::to_string)
        };
        let [proven, serving, excused, zero, void] =
            ["proven", "serving", "excused", "zero", "void"].map(count);
        vec![
            text("batch"),
            text("block"),
            text("state"),
            text("began_at"),
            proven,
            serving,
            excused,
            zero,
            void,
        ]
    });
    let heads = [
        "batch", "block", "state", "began", "proven", "serving", "excused", "zero", "void",
    ];
    print::table(&heads, rows);
    Ok(ExitCode::SUCCESS)
}

async fn explain(args: GradeExplain) -> Result<ExitCode> {
    let at = validator::address(args.of.state, &args.of.dir)?;
    let body = validator::ask(at, &format!("/v0/grades/{}?limit={}", args.miner, args.limit)).await?;
    if args.of.json && args.save.is_none() {
        print::line(format_args!("{body:#}"));
        return Ok(ExitCode::SUCCESS);
    }
    let Grades { grades } = serde_json::from_value(body).context("the validator is of another version")?;
    let Some(newest) = grades.first() else {
        print::line(format_args!(
            "no batch of this validator had an executor of that miner"
        ));
        return Ok(ExitCode::FAILURE);
    };
    if let Some(file) = &args.save {
        let path = format!("/v0/batches/{}?miner={}", newest.batch, args.miner);
        let evidence = validator::ask(at, &path).await?;
        std::fs::write(file, evidence.to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let rows = grades.iter().map(|graded| {
        vec![
            graded.batch.clone(),
            graded.block.to_string(),
            graded
                .class
                .map_or_else(|| "-".to_owned(), |class| class.to_string()),
            graded.index.to_string(),
            graded.said.clone(),
        ]
    });
    print::table(&["batch", "block", "class", "executor", "grade"], rows);
    if let Some(file) = &args.save {
        let file = file.display();
        print::line(format_args!(
            "the evidence of the newest batch is in {file}; judge it with: muster grade replay {file}"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

async fn again(args: GradeReplay) -> Result<ExitCode> {
    let name = args.file.display();
    let file = read(&args.file)?;
    let judging =
        tokio::task::spawn_blocking(move || replay(&file, InstructionSet::best(), &muster_identity::verify));
    let replayed = judging.await.context("the verifier has a defect")?;
    let replayed = replayed.with_context(|| format!("{name} is no evidence of a batch"))?;
    let holds = replayed.differences.is_empty();
    if args.json {
        let judged: Vec<_> = replayed
            .judgements
            .iter()
            .map(|(place, judgement)| json!({ "place": place, "judgement": judgement }))
            .collect();
        let told = json!({ "holds": holds, "judged": judged, "differences": replayed.differences });
        print::line(format_args!("{told:#}"));
    } else {
        for (place, judgement) in &replayed.judgements {
            print::line(format_args!("executor {place}: {judgement}"));
        }
        for difference in &replayed.differences {
            print::line(format_args!("DIFFERS: {difference}"));
        }
        if holds {
            print::line(format_args!("the evidence comes to what the validator said"));
        }
    }
    Ok(if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read(path: &Path) -> Result<BatchFile> {
    let name = path.display();
    let size = std::fs::metadata(path)
        .with_context(|| format!("cannot read {name}"))?
        .len();
    if size > MAX_FILE {
        return Err(Failure::usage(format_args!("{name} is larger than any evidence")));
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let file = serde_json::from_str(&text);
    Ok(file
        .with_context(|| format!("{name} is no evidence: it is what `muster grade explain --save` writes"))?)
}

// This machine.

/// The result of this machine in one class.
#[derive(Debug, Serialize)]
struct Own {
    class: ExecutorClass,
    passes: bool,
    /// Whether the whole course was run, or a short probe was enough.
    measured: bool,
    said: String,
}

async fn own(args: GradeSelf) -> Result<ExitCode> {
    if let (Some(file), Some(class)) = (args.write_floors.clone(), args.class) {
        return write_floors(file, class, args).await;
    }
    let classes: Vec<_> = args
        .class
        .map_or_else(|| ExecutorClass::ALL.to_vec(), |class| vec![class]);
    let whole = args.class.is_some();
    let running = tokio::task::spawn_blocking(move || {
        let mut prover = CpuProver::new(InstructionSet::best(), available_threads());
        let probe = if whole { None } else { Some(probe(&mut prover)?) };
        let mut found = Vec::new();
        for class in classes {
            found.push(of_class(&mut prover, class, probe)?);
        }
        anyhow::Ok(found)
    });
    let found = running.await.context("the prover has a defect")??;
    if args.json {
        print::line(format_args!("{}", serde_json::to_string_pretty(&found)?));
    } else {
        let rows = found.iter().map(|own| {
            let passes = if own.passes { "yes" } else { "no" };
            vec![own.class.to_string(), passes.to_owned(), own.said.clone()]
        });
        print::table(&["class", "passes", "because"], rows);
    }
    let passes = found.iter().any(|own| own.passes);
    Ok(if passes {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs a class's course here so often, and puts the rates into the file.
async fn write_floors(path: PathBuf, class: ExecutorClass, args: GradeSelf) -> Result<ExitCode> {
    let name = path.display().to_string();
    // Before anything is run for a file that cannot be added to.
    let mut floors = match std::fs::read_to_string(&path) {
        Ok(text) => {
            ThresholdsFile::parse(&text).map_err(|error| Failure::usage(format_args!("{name}: {error}")))?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => ThresholdsFile::default(),
        Err(error) => return Err(anyhow!(error).context(format!("cannot read {name}")).into()),
    };
    let machine = match args.machine {
        Some(machine) => machine,
        None => host_name().context("this machine has no host name: say --machine NAME")?,
    };
    let course = floors.grade_spec(class).context("the class has no floors")?;
    let running = tokio::task::spawn_blocking(move || {
        let mut prover = CpuProver::new(InstructionSet::best(), available_threads());
        let mut runs = MachineRuns {
            machine,
            ..MachineRuns::default()
        };
        for _ in 0..args.runs {
            for (number, tried) in tried_here(&mut prover, &course)?.iter().enumerate() {
                match tried.verdict {
                    ProofVerdict::Passed(measured) => note(&mut runs, &measured),
                    ProofVerdict::Zero(reason) => {
                        bail!(
                            "trial {number} of the course of {class} did not pass here, so nothing is written: {reason}"
                        )
                    }
                }
            }
        }
        anyhow::Ok(runs)
    });
    let runs = running.await.context("the prover has a defect")??;
    let told = json!(runs);
    floors.add_runs(class, runs);
    let text = floors.to_text();
    // Measured rates may contradict the rules of a file: a file that cannot be read must not be written.
    ThresholdsFile::parse(&text).map_err(|error| anyhow!("{name} would not be usable: {error}"))?;
    let draft = path.with_extension("part");
    std::fs::write(&draft, text).with_context(|| format!("cannot write {}", draft.display()))?;
    std::fs::rename(&draft, &path).with_context(|| format!("cannot write {name}"))?;
    if args.json {
        print::line(format_args!("{told:#}"));
    } else {
        print::line(format_args!("{name}: {class}: {}", floors.describe(class)));
    }
    Ok(ExitCode::SUCCESS)
}

fn note(runs: &mut MachineRuns, measured: &Measurement) {
    match measured {
        Measurement::Matmul {
            numbers: NumberFormat::Int8,
            rate,
            ..
        } => runs.int8.push(*rate),
        Measurement::Matmul {
            numbers: NumberFormat::Fp16,
            rate,
            ..
        } => runs.fp16.push(*rate),
        Measurement::Walk { rate, .. } => runs.bandwidth.push(*rate),
    }
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// A class whose floors are far beyond the probe is not tried: its course would take hours here.
fn of_class(prover: &mut CpuProver, class: ExecutorClass, probe: Option<u64>) -> anyhow::Result<Own> {
    let course = GradeSpec::for_class(class).context("the class has no floors")?;
    let floor = course.thresholds.least.int8;
    if let Some(rate) = probe.filter(|rate| rate.saturating_mul(HOPELESS) < floor) {
        let said = format!(
            "int8 is about {rate}, the class asks for {floor} (a probe; --class {class} runs the whole course)"
        );
        return Ok(Own {
            class,
            passes: false,
            measured: false,
            said,
        });
    }
    let judgement = course_here(prover, &course)?;
    Ok(Own {
        class,
        passes: matches!(judgement, Judgement::Proven { .. }),
        measured: true,
        said: judgement.to_string(),
    })
}

/// The validator's own judgement of this machine.
fn course_here(prover: &mut CpuProver, course: &GradeSpec) -> anyhow::Result<Judgement> {
    let tried = tried_here(prover, course)?;
    let marks = [(0, tried.iter().map(|tried| tried.fingerprint).collect())].into();
    Ok(judge_participant(0, course, &tried, &marks))
}

/// The validator's own machines and course, with this machine's prover at the other end of a function call.
fn tried_here(prover: &mut CpuProver, course: &GradeSpec) -> anyhow::Result<Vec<TrialResult>> {
    let seat = Participant {
        miner: MinerKey(Hotkey::from_bytes([0; 32])),
        class: course.class(),
        index: 0,
    };
    let mut tried = Vec::new();
    let mut memory = None;
    let mut attempt = |number, trial: &Trial| {
        let (evidence, trouble) = converse(prover, &seat, trial, memory)?;
        memory = evidence.spec.walk_memory().or(memory);
        anyhow::Ok(TrialResult::from_evidence(
            number,
            &evidence,
            trouble,
            InstructionSet::best(),
        ))
    };
    for (number, trial) in course.trials.iter().enumerate() {
        let mut one = attempt(number, trial)?;
        if matches!(one.verdict, ProofVerdict::Zero(reason) if !reason.is_wrong()) {
            tried.push(one);
            one = attempt(number, trial)?;
        }
        let passed = matches!(one.verdict, ProofVerdict::Passed(_));
        tried.push(one);
        // A batch, too, releases an executor that did not pass.
        if !passed {
            break;
        }
    }
    Ok(tried)
}

/// One conversation, every message timed; and why the prover could not go on, if it could not.
fn converse(
    prover: &mut CpuProver,
    seat: &Participant,
    trial: &Trial,
    memory: Option<WalkMemory>,
) -> anyhow::Result<(Evidence, Option<String>)> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce)?;
    let identity = ChallengeIdentity {
        batch: BatchId([0; 16]),
        executor: seat.executor_name(),
        nonce: ChallengeNonce(nonce),
    };
    let mut validator =
        ValidatorConversation::new(trial.shape.challenge_spec(identity, memory)?, trial.limits());
    let mut executor = ExecutorConversation::new(CAPS);
    let begun = Instant::now();
    let at = || u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut message = validator.challenge().to_vec();
    validator.apply(ValidatorInput::Started, at());
    loop {
        let answer = match answer(prover, &mut executor, &message) {
            Ok(answer) => answer,
            Err(why) => {
                validator.apply(ValidatorInput::Gone, at());
                return Ok((validator.into_evidence(), Some(why)));
            }
        };
        match validator.apply(ValidatorInput::Message(&answer), at()) {
            Some(ValidatorAction::NeedRandomness) => {}
            Some(ValidatorAction::End) => return Ok((validator.into_evidence(), None)),
            Some(ValidatorAction::Send(_)) | None => bail!("the conversation is out of step"),
        }
        let mut random = [0; 32];
        getrandom::fill(&mut random)?;
        match validator.apply(ValidatorInput::Randomness(random), at()) {
            Some(ValidatorAction::Send(bytes)) => message = bytes,
            Some(ValidatorAction::NeedRandomness | ValidatorAction::End) | None => {
                bail!("the conversation is out of step")
            }
        }
    }
}

fn answer(
    prover: &mut dyn Prover,
    executor: &mut ExecutorConversation,
    message: &[u8],
) -> std::result::Result<Vec<u8>, String> {
    let refused = |refusal: ChallengeRejection| refusal.to_string();
    let mut command = executor.receive(message).map_err(refused)?;
    loop {
        match command {
            ExecutorCommand::Run(task) => {
                let output = perform_task(prover, &task, &NoObserver)
                    .map_err(|error: ProverError| error.to_string())?;
                command = executor.complete_task(&output).map_err(refused)?;
            }
            ExecutorCommand::Send(bytes) => return Ok(bytes),
            ExecutorCommand::End(_) => return Err("the prover thinks that it is over".to_owned()),
        }
    }
}

/// The int8 rate of a second's work.
fn probe(prover: &mut CpuProver) -> anyhow::Result<u64> {
    let trial = Trial {
        shape: ProofShape::Int8 {
            log2_n: 11,
            rounds: 2,
            entries: 8,
            blocks_per_row: 0,
        },
        fill_us: 0,
        commit_us: u64::MAX,
        open_us: u64::MAX,
    };
    let seat = Participant {
        miner: MinerKey(Hotkey::from_bytes([0; 32])),
        class: ExecutorClass::AlwaysOnTest,
        index: 0,
    };
    let (evidence, _) = converse(prover, &seat, &trial, None)?;
    match evidence.judge(InstructionSet::best()) {
        ProofVerdict::Passed(Measurement::Matmul { rate, .. }) => Ok(rate),
        ProofVerdict::Passed(Measurement::Walk { .. }) | ProofVerdict::Zero(_) => {
            bail!("this machine's prover is wrong")
        }
    }
}

// The demonstration.

/// Judges a batch again from its file, and returns what came of it: how many are proven, and why each of the others is
/// worth nothing.
pub(crate) fn told(file: &BatchFile) -> anyhow::Result<(usize, Vec<String>)> {
    let replayed = replay(file, InstructionSet::best(), &muster_identity::verify)
        .context("the validator's evidence cannot be read")?;
    if let Some(difference) = replayed.differences.first() {
        bail!("the validator's evidence says otherwise than it does: {difference}");
    }
    let proven = replayed
        .judgements
        .values()
        .filter(|judged| matches!(judged, Judgement::Proven { .. }));
    let zeros = replayed.judgements.values().filter_map(|judged| match judged {
        Judgement::Zero { reasons } => Some(reasons),
        Judgement::Proven { .. }
        | Judgement::Serving { .. }
        | Judgement::Excused { .. }
        | Judgement::Void { .. } => None,
    });
    let reasons: BTreeSet<&Why> = zeros.flatten().collect();
    Ok((
        proven.count(),
        reasons.into_iter().map(ToString::to_string).collect(),
    ))
}
