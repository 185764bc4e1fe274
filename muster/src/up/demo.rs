//! The demo: one job through the whole subnet, shown step by step, until its weight is on the chain.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use indexmap::IndexMap;
use muster_chain::{ChainClient, Netuid, Uid};
use muster_client::{Client, Credential, News};
use muster_grading::ObservationKind;
use muster_grading::batch_plan::is_due;
use muster_grading::judgement::Judgement;
use muster_identity::Keypair;
use muster_local_subnet::programs::find_checkout;
use muster_local_subnet::subnet_folder::LocalSubnet;
use muster_process::clock::SharedClock;
use muster_process::operator_token::OperatorToken;
use muster_protocol::rest::{CreateJob, JobView};
use muster_protocol::{ErrorCode, ExecutorClass, ImageId, JobStatus, Receipt, ReceiptKind, Timestamp};
use muster_terminal::{job_text, print};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::plan::{self, DEMO_MODEL, LIMIT, Setup};
use crate::facilitator_access::client_failure;
use crate::failure::{Failure, Result};
use crate::{chat, grade, job, job_inputs, proof};

/// Where Debian keeps the texts of common licences.
const LICENCES: &str = "/usr/share/common-licenses";
const ARTIFACT: &str = "/artifacts/words.json";
/// The prompt of the demo model.
const CHAT: &str = "every answer carries a signature";
const CHAT_TOKENS: u32 = 10;
/// How many words are shown.
const SHOWN_WORDS: usize = 5;
/// One block in this many draws a batch, in the last part of the demo.
const EVERY_BLOCKS: u64 = 4;
/// The seconds that the transfers and the program of the demo job may take, many times what an idle machine needs.
const TRANSFER_SECS: u64 = 120;
const EXECUTION_SECS: u64 = 240;
/// The time between two messages about what is waited for.
const REPORT_EVERY: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// Everything that happened, for machines.
#[derive(Debug, Serialize)]
pub(crate) struct DemoReport {
    /// The steps with their times, in seconds since the start.
    steps: Vec<DemoStep>,
    /// The job as its user sees it.
    job: JobView,
    /// The words of the licence texts: the job's result.
    words: WordCount,
    /// Receipts with both signatures, checked.
    receipts: Vec<Receipt>,
    /// Two batches of known-answer proofs, the first with a cheat in it; judged again here from their evidence.
    batches: [BatchReport; 2],
    /// The demo model's answer with its proof, checked.
    chat: chat::ChatAnswer,
    /// The weight that the validator set for the miner.
    weight: ChainWeight,
    /// A batch that nobody asked for: a block's hash drew it.
    drawn: DrawnBatch,
}

/// The output of the demo image's program.
#[derive(Debug, Serialize, Deserialize)]
struct WordCount {
    files: u64,
    words: u64,
    distinct_words: u64,
    top: Vec<CountedWord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CountedWord {
    word: String,
    count: u64,
}

/// The result of a batch.
#[derive(Debug, Serialize)]
pub(super) struct BatchReport {
    executors: usize,
    cheating: usize,
    proven: usize,
    /// Why the others are worth nothing.
    reasons: Vec<String>,
}

/// A batch that a block drew.
#[derive(Debug, Serialize)]
struct DrawnBatch {
    /// The number of the block.
    block: u64,
    /// Executors in the batch; each was proven, or challenged in the session that it serves.
    executors: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct DemoStep {
    name: String,
    seconds: f64,
}

/// A weight as the chain has it.
#[derive(Debug, Serialize)]
struct ChainWeight {
    netuid: Netuid,
    validator_uid: Uid,
    miner_uid: Uid,
    weight: u16,
    epoch_blocks: u16,
}

/// Counts the steps and prints them as they happen.
pub(crate) struct DemoSteps {
    begun: Timestamp,
    /// When what has not come is given up.
    pub(super) deadline: Timestamp,
    pub(super) clock: SharedClock,
    quiet: bool,
    pub(super) steps: Vec<DemoStep>,
}

impl DemoSteps {
    /// Starts counting now.
    pub(crate) fn new(clock: SharedClock, quiet: bool) -> Self {
        let begun = clock.now();
        Self {
            begun,
            deadline: begun.plus(LIMIT),
            clock,
            quiet,
            steps: Vec::new(),
        }
    }

    /// Begins the time within which the demonstration has to be over. Programs may have been built before, for minutes.
    pub(crate) fn begin_limit(&mut self) {
        self.deadline = self.clock.now().plus(LIMIT);
    }

    /// Looks for something until it is there.
    ///
    /// # Errors
    /// Looking failed, or the demonstration's time is over; the error names what has not come, and what was seen last.
    pub(super) async fn wait_for<T>(
        &self,
        what: &str,
        mut look: impl AsyncFnMut() -> Result<DemoFinding<T>>,
    ) -> Result<T> {
        let mut report_at = self.clock.now().plus(REPORT_EVERY);
        loop {
            let seen = match look().await? {
                DemoFinding::There(found) => return Ok(found),
                DemoFinding::NotYet(seen) => seen,
            };
            let now = self.clock.now();
            if now >= report_at {
                report_at = now.plus(REPORT_EVERY);
                print::problem(format_args!("still waiting for {what}; seen last: {seen}"));
            }
            if now >= self.deadline {
                let minutes = LIMIT.as_secs() / 60;
                let error = anyhow::anyhow!(
                    "the demonstration is given up after {minutes} minutes, since this did not come: {what}; \
                     seen last: {seen}"
                );
                return Err(error.into());
            }
            self.clock.sleep(LOOK).await;
        }
    }

    /// Something has happened just now.
    pub(crate) fn step(&mut self, name: impl Into<String>) {
        self.step_at(name, self.clock.now());
    }

    fn step_at(&mut self, name: impl Into<String>, at: Timestamp) {
        let (name, seconds) = (name.into(), at.since(self.begun).as_secs_f64());
        if !self.quiet {
            print::line(format_args!("{seconds:>8.3} s  {name}"));
        }
        self.steps.push(DemoStep { name, seconds });
    }
}

/// The result of one look for something.
pub(super) enum DemoFinding<T> {
    /// It is there.
    There(T),
    /// It is not there yet; holds what there is instead, as text.
    NotYet(String),
}

/// Runs the demo job.
pub(crate) async fn run(
    mut diary: DemoSteps,
    setup: &Setup<'_>,
    netuid: Netuid,
    user: Keypair,
    signer: String,
) -> Result<DemoReport> {
    let (subnet, image) = (setup.subnet, setup.image);
    let clock = diary.clock.clone();
    let client = Client::connect(&subnet.facilitator_url(), Credential::hotkey(user), clock.clone())
        .await
        .map_err(client_failure)?;
    let texts = licence_texts();
    let request = request(subnet, image, &texts)?;
    // Taken before the request leaves, so that no later step has an earlier time.
    let submitted = clock.now();
    let created = client.create(&request).await.map_err(client_failure)?;
    diary.step_at(
        format!("job {} submitted: the words of {}", created.uuid, texts.display()),
        submitted,
    );
    let job = client
        .follow(created.uuid, diary.deadline, |news| match news {
            News::Status(entry) => diary.step_at(format!("job {}", entry.status), entry.created_at),
            News::Log(_) | News::Progress(_) | News::Queued(_) | News::Metrics(_) => {}
        })
        .await
        .map_err(client_failure)?;
    if job.last_status() != JobStatus::Completed {
        let reason = job_text::failure(&job).unwrap_or_default();
        return Err(anyhow::anyhow!("the demo job did not succeed: {reason}").into());
    }
    let words = words(&job)?;
    diary.step(format!("result: {}", describe(&words)));
    let receipts = checked_receipts(&job, clock.now())?;
    for receipt in &receipts {
        diary.step(format!("receipt {}", job_text::describe(receipt)));
    }
    let batches = [
        batch(&mut diary, setup, true).await?,
        batch(&mut diary, setup, false).await?,
    ];
    let chat = talk(&client, &clock).await?;
    let (view, said) = (&chat.record.view, chat.text.trim());
    let took = view.ended_at.since(view.asked_at).as_millis();
    diary.step(format!(
        "{} said {said:?} in {took} ms; {} by miner {}",
        view.model, chat.verdict, view.miner
    ));
    let weight = weight(&diary, subnet, netuid).await?;
    diary.step(format!(
        "weight {} of miner uid {} set by validator uid {} on netuid {}",
        weight.weight, weight.miner_uid, weight.validator_uid, weight.netuid
    ));
    let drawn = drawn_batch(&mut diary, setup, signer).await?;
    Ok(DemoReport {
        steps: diary.steps,
        job,
        words,
        receipts,
        batches,
        chat,
        weight,
        drawn,
    })
}

/// Every executor is challenged at one instant, one of them cheating if there are two. The validator gets no hint;
/// what it reports is judged again here from its evidence.
pub(super) async fn batch(diary: &mut DemoSteps, setup: &Setup<'_>, cheating: bool) -> Result<BatchReport> {
    let cheating = cheating && setup.all_executors() > 1;
    if cheating {
        std::fs::write(setup.layout.cheat_flag(), "").context("cannot let an executor cheat")?;
    }
    let token = OperatorToken::read(&setup.layout.operator_token())?;
    let file = grade::batch(setup.subnet.validator_status, &token, ObservationKind::Announced).await?;
    let (proven, reasons) = grade::told(&file)?;
    let all = file.judgements.len();
    let expected = all.saturating_sub(usize::from(cheating));
    let who = if cheating {
        "one of them cheating"
    } else {
        "all of them honest"
    };
    let zeros = if reasons.is_empty() {
        String::new()
    } else {
        format!("; worth nothing: {}", reasons.join("; "))
    };
    diary.step(format!(
        "{all} executors challenged together, {who}: {proven} proven{zeros}"
    ));
    if proven != expected || u32::try_from(all) != Ok(setup.all_executors()) {
        return Err(anyhow::anyhow!("of {all} executors, {who}, {proven} were proven: {zeros}").into());
    }
    Ok(BatchReport {
        executors: all,
        cheating: usize::from(cheating),
        proven,
        reasons,
    })
}

/// Restarts the validator with a configuration by which one block in four draws a batch, and waits for a batch that
/// nobody asked for. Its file is judged again here, and its block must be one that draws.
async fn drawn_batch(diary: &mut DemoSteps, setup: &Setup<'_>, signer: String) -> Result<DrawnBatch> {
    let address = setup.subnet.validator_status;
    let earlier = grade::batches(address).await?;
    let config = setup.validator(Some(signer), EVERY_BLOCKS);
    plan::write_toml(&setup.layout.config("validator"), &config)?;
    let pid = std::fs::read_to_string(setup.layout.pid("validator"))?;
    let pid = pid.parse().context("the validator's process id")?;
    kill(Pid::from_raw(pid), Signal::SIGTERM).context("cannot restart the validator")?;
    let look = async || {
        Ok::<_, Failure>(match grade::batches(address).await {
            Ok(batches) => match batches.difference(&earlier).next() {
                Some(id) => DemoFinding::There(id.clone()),
                None => DemoFinding::NotYet(format!("{} batches", batches.len())),
            },
            // Nobody answers while the validator restarts.
            Err(_) => DemoFinding::NotYet("no answer of the validator".to_owned()),
        })
    };
    let id = diary.wait_for("a batch that a block drew", look).await?;
    let file = grade::read_batch(address, &id).await?;
    let head = &file.head;
    if !is_due(&head.hash, head.validator, EVERY_BLOCKS) {
        return Err(anyhow::anyhow!("block {} draws no batch, and one was run", head.block).into());
    }
    let (proven, reasons) = grade::told(&file)?;
    let executors = file.judgements.len();
    let serving = file
        .judgements
        .iter()
        .filter(|judgement| matches!(judgement, Judgement::Serving { .. }))
        .count();
    if !reasons.is_empty() || executors == 0 || proven.saturating_add(serving) != executors {
        return Err(anyhow::anyhow!(
            "of {executors} executors in the drawn batch, {proven} were proven and {serving} served: {}",
            reasons.join("; ")
        )
        .into());
    }
    diary.step(format!(
        "block {} drew a batch: {proven} executors proven, {serving} more in the session that they serve",
        head.block
    ));
    Ok(DrawnBatch {
        block: head.block,
        executors,
    })
}

/// One answer of the demo model, streamed through the whole path, and its proof checked here.
async fn talk(client: &Client, clock: &SharedClock) -> Result<chat::ChatAnswer> {
    let talk = chat::Conversation {
        client,
        clock,
        model: DEMO_MODEL,
        max_tokens: CHAT_TOKENS,
        quiet: true,
    };
    let answer = talk.ask(&[json!({ "role": "user", "content": CHAT })]).await?;
    if answer.verdict != proof::PROVEN {
        return Err(anyhow::anyhow!("the demo model's answer is {}", answer.verdict).into());
    }
    Ok(answer)
}

/// The folder of this machine's licence texts; where it has none, that of our own, installed or in the checkout.
pub(super) fn licence_texts() -> PathBuf {
    let common = Path::new(LICENCES);
    if common.is_dir() {
        return common.to_owned();
    }
    let muster = std::env::current_exe().unwrap_or_default();
    find_checkout(&muster).unwrap_or_else(|| muster.with_file_name("../share/doc/muster"))
}

pub(super) fn request(subnet: &LocalSubnet, image: ImageId, folder: &Path) -> anyhow::Result<CreateJob> {
    let mut texts = job_inputs::folder(folder, "licences")?;
    texts.retain(|text| folder == Path::new(LICENCES) || text.path.contains("/LICENSE"));
    let volume = job_inputs::pack(&texts)?.context("there are no licence texts to count the words of")?;
    Ok(CreateJob {
        tag: None,
        target_validator_hotkey: subnet.validator,
        executor_class: ExecutorClass::AlwaysOnTest,
        docker_image: image.to_string(),
        job_namespace: None,
        args: vec!["words".to_owned()],
        env: IndexMap::new(),
        use_gpu: false,
        artifacts_dir: Some("/artifacts".to_owned()),
        on_trusted_miner: false,
        download_time_limit: TRANSFER_SECS,
        execution_time_limit: EXECUTION_SECS,
        streaming_start_time_limit: 0,
        upload_time_limit: TRANSFER_SECS,
        streaming_details: None,
        volumes: Some(vec![volume]),
        uploads: None,
        muster: None,
        webhook: None,
    })
}

fn words(job: &JobView) -> anyhow::Result<WordCount> {
    let contents = job
        .artifacts
        .get(ARTIFACT)
        .with_context(|| format!("the job left no {ARTIFACT}"))?;
    let words: WordCount = serde_json::from_slice(&job::saved_outputs::artifact(contents)?)
        .context("words.json is no table of words")?;
    if words.top.is_empty() {
        bail!("the job counted no words");
    }
    Ok(words)
}

fn describe(words: &WordCount) -> String {
    let top: Vec<_> = words
        .top
        .iter()
        .take(SHOWN_WORDS)
        .map(|top| format!("{} {}", top.word, top.count))
        .collect();
    let WordCount {
        files,
        words,
        distinct_words,
        ..
    } = words;
    format!(
        "{words} words in {files} texts, {distinct_words} different, most often {}",
        top.join(", ")
    )
}

/// Both sides' signatures on every receipt of the job, checked here and now.
fn checked_receipts(job: &JobView, now: Timestamp) -> Result<Vec<Receipt>> {
    let receipts = job_text::receipts(job);
    for kind in [ReceiptKind::Started, ReceiptKind::Finished] {
        if !receipts.iter().any(|receipt| receipt.payload.kind() == kind) {
            return Err(anyhow::anyhow!("the job ended without a {kind} signed by both").into());
        }
    }
    for receipt in &receipts {
        muster_identity::verify_receipt(receipt.clone(), now)
            .map_err(|error| Failure::new(ErrorCode::SignatureRefused, error))?;
    }
    Ok(receipts)
}

/// Waits until the validator's weight for the miner is on the chain.
async fn weight(diary: &DemoSteps, subnet: &LocalSubnet, netuid: Netuid) -> Result<ChainWeight> {
    let unreachable = |error| Failure::new(ErrorCode::ChainUnreachable, error);
    let chain = ChainClient::connect(&subnet.chain_url())
        .await
        .map_err(unreachable)?;
    let metagraph = chain.metagraph(netuid).await.map_err(unreachable)?;
    let uid = |hotkey| {
        metagraph
            .find(hotkey)
            .map(|neuron| neuron.uid)
            .context("a role has no uid in the subnet")
    };
    let (validator_uid, miner_uid) = (uid(&subnet.validator.0)?, uid(&subnet.miner.0)?);
    let look = async || {
        let weights = chain
            .weights_of(netuid, validator_uid)
            .await
            .map_err(unreachable)?;
        let of_miner = weights
            .iter()
            .find(|(uid, weight)| *uid == miner_uid.0 && *weight > 0);
        Ok::<_, Failure>(match of_miner {
            Some((_, weight)) => DemoFinding::There(*weight),
            None => DemoFinding::NotYet(format!("{} weights, none of them the miner's", weights.len())),
        })
    };
    let weight = diary
        .wait_for("a weight of the validator for the miner", look)
        .await?;
    Ok(ChainWeight {
        netuid,
        validator_uid,
        miner_uid,
        weight,
        epoch_blocks: metagraph.tempo,
    })
}
