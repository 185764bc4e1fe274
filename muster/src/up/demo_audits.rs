//! The demonstration of spot checks: two miners serve one model, one of them with cheaper weights under the same name.
//! The validator gathers proven answers, has machines provisioned, scores the answers there, convicts the cheat, and
//! takes its weight.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use futures_util::future::try_join_all;
use muster_chain::{ChainClient, Metagraph, Netuid, Uid};
use muster_client::{Client, Credential};
use muster_operator::score::replay_bundle;
use muster_operator::{fetch_bundle, wait_for_offers};
use muster_process::clock::SharedClock;
use muster_protocol::{Digest, ErrorCode, JobStatus, MinerKey};
use muster_terminal::job_text;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::audits_plan::{AuditsPlan, MODEL, fleet_folder};
use super::demo::{DemoFinding, DemoStep, DemoSteps, batch, licence_texts, request};
use super::plan::{Keys, NETUID, Setup};
use crate::chat::{ChatAnswer, Conversation};
use crate::facilitator_access::client_failure;
use crate::failure::{Failure, Result};
use crate::proof;

/// The user's questions, all at once: each miner answers some of them.
const QUESTIONS: [&str; 4] = ["The tides", "A lighthouse", "Bread", "Old bridges"];
const QUESTION_TOKENS: u32 = 24;

/// Everything that happened, for machines.
#[derive(Debug, Serialize)]
pub(super) struct AuditsReport {
    /// The steps with their times, in seconds since the start.
    steps: Vec<DemoStep>,
    /// The user's answers with their proofs, checked.
    chats: Vec<ChatAnswer>,
    /// The verdict about each miner, computed again here from its bundle.
    verdicts: BTreeMap<MinerKey, ReplayedVerdict>,
    /// Machines that were provisioned, and those of them that were released.
    provisioned: usize,
    released: usize,
    /// The weights on the chain before and after the verdicts, by miner.
    weights: [BTreeMap<MinerKey, u16>; 2],
}

/// The verdict about a miner.
#[derive(Clone, Debug, Serialize)]
struct ReplayedVerdict {
    /// The bundle from which it follows.
    bundle: Digest,
    /// The verdict by its name.
    verdict: String,
    /// The audited answers that were scored.
    scored: u64,
}

/// An audit as the validator lists it.
#[derive(Debug, Deserialize)]
struct ListedRun {
    coldkey: String,
    bundle: Option<Digest>,
    verdict: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ListedRuns {
    runs: Vec<ListedRun>,
}

impl fmt::Display for ListedRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let judged = self.runs.iter().filter_map(|run| run.verdict.as_deref());
        let verdicts: Vec<_> = judged.collect();
        write!(
            f,
            "{} audits, with the verdicts: {}",
            self.runs.len(),
            verdicts.join(", ")
        )
    }
}

/// The weights of miners in a line.
fn told_weights(weights: &BTreeMap<MinerKey, u16>) -> String {
    let of_miners = weights
        .iter()
        .map(|(miner, weight)| format!("{weight} of {miner}"));
    format!("the weights {}", of_miners.collect::<Vec<_>>().join(", "))
}

/// Runs the demonstration.
pub(super) async fn run(
    mut diary: DemoSteps,
    setup: &Setup<'_>,
    audits: &AuditsPlan,
    keys: &Keys,
) -> Result<AuditsReport> {
    let subnet = setup.subnet;
    let clock = diary.clock.clone();
    let client = Client::connect(
        &subnet.facilitator_url(),
        Credential::hotkey(keys.user.clone()),
        clock.clone(),
    )
    .await
    .map_err(client_failure)?;
    // If they do not come, the batch names who is missing.
    let (wanted, until) = (setup.all_executors(), diary.deadline);
    let offers = wait_for_offers(subnet.validator_status, wanted, until, &clock).await;
    offers.map_err(|error| anyhow!("{error}"))?;
    batch(&mut diary, setup, false).await?;
    jobs(&mut diary, setup, &client).await?;
    let miners: Vec<MinerKey> = subnet.miners().into_iter().map(|(miner, _)| miner).collect();
    let &[honest, cheat] = miners.as_slice() else {
        return Err(anyhow!("the demonstration has two miners").into());
    };
    let chain = Weights::connect(setup).await?;
    let before = chain
        .wait_until(&diary, "both miners have a weight", |weights| {
            [honest, cheat].iter().all(|miner| of(weights, miner) > 0)
        })
        .await?;
    diary.step(format!(
        "weights: {} of the honest miner, {} of the other one",
        of(&before, &honest),
        of(&before, &cheat)
    ));
    let chats = talk(&mut diary, &client, &clock).await?;
    let verdicts = verdicts(&mut diary, setup, keys, [honest, cheat]).await?;
    let named = |miner| {
        verdicts
            .get(miner)
            .map_or("no verdict", |one| one.verdict.as_str())
    };
    let (of_honest, of_cheat) = (named(&honest), named(&cheat));
    if of_cheat != "convicted" || of_honest != "consistent" {
        return Err(anyhow!("the miner that cheats is {of_cheat}, the honest one {of_honest}").into());
    }
    let (provisioned, released) = machines(&mut diary, setup, audits).await?;
    let after = chain
        .wait_until(&diary, "the weight of the miner that cheats falls", |weights| {
            of(weights, &cheat) == 0 && of(weights, &honest) > 0
        })
        .await?;
    diary.step(format!(
        "weights: {} of the honest miner, {} of the convicted one",
        of(&after, &honest),
        of(&after, &cheat)
    ));
    Ok(AuditsReport {
        steps: diary.steps,
        chats,
        verdicts,
        provisioned,
        released,
        weights: [before, after],
    })
}

/// A job on each miner, so that both have earned something.
async fn jobs(diary: &mut DemoSteps, setup: &Setup<'_>, client: &Client) -> Result {
    let wanted = setup.all_executors();
    let deadline = diary.deadline;
    let running = (0..wanted).map(|_| async {
        let request = request(setup.subnet, setup.image, &licence_texts())?;
        let created = client.create(&request).await.map_err(client_failure)?;
        let job = client
            .follow(created.uuid, deadline, |_| {})
            .await
            .map_err(client_failure)?;
        if job.last_status() == JobStatus::Completed {
            return Ok(());
        }
        let reason = job_text::failure(&job).unwrap_or_default();
        Err(Failure::from(anyhow!("a job did not succeed: {reason}")))
    });
    try_join_all(running).await?;
    diary.step(format!(
        "{wanted} jobs at once, one on each miner: both completed"
    ));
    Ok(())
}

/// Questions of a user, each with the check of its answer's proof.
async fn talk(diary: &mut DemoSteps, client: &Client, clock: &SharedClock) -> Result<Vec<ChatAnswer>> {
    let conversation = Conversation {
        client,
        clock,
        model: MODEL,
        max_tokens: QUESTION_TOKENS,
        quiet: true,
    };
    let asked = QUESTIONS.map(|text| {
        let conversation = &conversation;
        async move {
            conversation
                .ask(&[json!({ "role": "user", "content": text })])
                .await
        }
    });
    let answers = try_join_all(asked).await?;
    if let Some(unproven) = answers.iter().find(|answer| answer.verdict != proof::PROVEN) {
        return Err(anyhow!("an answer of {MODEL} is {}", unproven.verdict).into());
    }
    let mut by_miner: BTreeMap<MinerKey, usize> = BTreeMap::new();
    for answer in &answers {
        *by_miner.entry(answer.record.view.miner).or_default() += 1;
    }
    diary.step(format!(
        "{} answers of {MODEL} from {} miners, all with valid proofs: the proof says who answered, not by which weights",
        answers.len(),
        by_miner.len()
    ));
    Ok(answers)
}

/// Waits until both miners have a verdict, and computes it again from the bundle.
async fn verdicts(
    diary: &mut DemoSteps,
    setup: &Setup<'_>,
    keys: &Keys,
    [honest, cheat]: [MinerKey; 2],
) -> Result<BTreeMap<MinerKey, ReplayedVerdict>> {
    let at = setup.subnet.validator_status;
    let coldkeys = BTreeMap::from([
        (honest, keys.miner_coldkey.to_string()),
        (
            cheat,
            keys.further_miners
                .first()
                .context("the demonstration has two miners")?
                .coldkey
                .to_string(),
        ),
    ]);
    let provisioned = async || {
        Ok::<_, Failure>(match calls(setup, "provision")?.is_empty() {
            true => DemoFinding::NotYet("no call for a machine".to_owned()),
            false => DemoFinding::There(()),
        })
    };
    diary
        .wait_for("the first machine that scores", provisioned)
        .await?;
    diary.step("enough answers have gathered: machines are provisioned, which score them");
    // A miner may have had too few answers for a conviction at its first audit; the next one has more.
    let judged = async || {
        let asked = reqwest::get(format!("http://{at}/v0/audits/runs")).await?;
        let listed: ListedRuns = asked.json().await.context("the validator lists no audits")?;
        let of = |miner: &MinerKey| {
            let is_of = |run: &&ListedRun| Some(&run.coldkey) == coldkeys.get(miner) && run.verdict.is_some();
            let run = listed.runs.iter().find(is_of)?;
            Some((run.bundle?, run.verdict.clone()?))
        };
        Ok::<_, Failure>(match (of(&honest), of(&cheat)) {
            (Some(honest), Some(cheat)) if cheat.1 == "convicted" => DemoFinding::There([honest.0, cheat.0]),
            (Some(_) | None, Some(_) | None) => DemoFinding::NotYet(listed.to_string()),
        })
    };
    let runs = diary
        .wait_for("a verdict about each miner, and a conviction", judged)
        .await?;
    let mut replayed = BTreeMap::new();
    for (miner, bundle) in [honest, cheat].into_iter().zip(runs) {
        let text = fetch_bundle(at, &bundle)
            .await
            .map_err(|error| anyhow!("{error}"))?;
        let said = replay_bundle(&text, Some(&bundle.to_string()), true)?;
        let said: Value = serde_json::from_str(&said).context("a replay is no JSON")?;
        let verdict = said.pointer("/verdict").and_then(Value::as_str);
        let verdict = verdict.context("a replay without a verdict")?;
        let verdict = ReplayedVerdict {
            bundle,
            verdict: verdict.to_owned(),
            scored: said
                .pointer("/counts/scored")
                .and_then(Value::as_u64)
                .unwrap_or_default(),
        };
        diary.step(format!(
            "miner {miner} is {} by {} answers; computed again here from bundle {bundle}",
            verdict.verdict, verdict.scored
        ));
        replayed.insert(miner, verdict);
    }
    Ok(replayed)
}

/// Waits until every machine that was provisioned for the verdicts is released. Returns how many were provisioned, and
/// how many of those were released.
///
/// Audits go on meanwhile, so machines that are provisioned during the wait are left out.
async fn machines(diary: &mut DemoSteps, setup: &Setup<'_>, audits: &AuditsPlan) -> Result<(usize, usize)> {
    let provisioned = calls(setup, "provision")?;
    let look = async || {
        let mut released = calls(setup, "released")?;
        released.retain(|machine| provisioned.contains(machine));
        let is_released = |machine| released.contains(machine);
        Ok::<_, Failure>(match provisioned.iter().all(is_released) {
            true => DemoFinding::There(released.len()),
            false => DemoFinding::NotYet(format!(
                "{} of {} machines were released",
                released.len(),
                provisioned.len()
            )),
        })
    };
    let released = diary.wait_for("the release of all machines", look).await?;
    diary.step(format!(
        "{} machines of the validator's own miner {} were provisioned, and all of them are released",
        provisioned.len(),
        audits.key()
    ));
    Ok((provisioned.len(), released))
}

/// The machines for which the fleet's script was called with this word.
fn calls(setup: &Setup<'_>, word: &str) -> anyhow::Result<Vec<String>> {
    let file = fleet_folder(setup.layout).join("calls");
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("cannot read which machines there were"),
    };
    let machines = text.lines().filter_map(|line| {
        let (said, machine) = line.split_once(' ')?;
        (said == word).then(|| machine.to_owned())
    });
    Ok(machines.collect())
}

fn of(weights: &BTreeMap<MinerKey, u16>, miner: &MinerKey) -> u16 {
    weights.get(miner).copied().unwrap_or_default()
}

/// The validator's weights on the chain.
struct Weights {
    chain: Arc<ChainClient>,
    metagraph: Metagraph,
    netuid: Netuid,
    validator: Uid,
}

impl Weights {
    async fn connect(setup: &Setup<'_>) -> Result<Self> {
        let chain = ChainClient::connect(&setup.subnet.chain_url())
            .await
            .map_err(unreachable)?;
        let metagraph = chain.metagraph(NETUID).await.map_err(unreachable)?;
        let validator = metagraph.find(&setup.subnet.validator.0);
        let validator = validator.context("the validator has no uid in the subnet")?.uid;
        Ok(Self {
            chain,
            metagraph,
            netuid: NETUID,
            validator,
        })
    }

    async fn read(&self) -> Result<BTreeMap<MinerKey, u16>> {
        let weights = self.chain.weights_of(self.netuid, self.validator).await;
        let weights: BTreeMap<u16, u16> = weights.map_err(unreachable)?.into_iter().collect();
        let neurons = self.metagraph.neurons.iter();
        let of_miners = neurons.filter_map(|neuron| {
            let weight = weights.get(&neuron.uid.0)?;
            Some((MinerKey(neuron.hotkey), *weight))
        });
        Ok(of_miners.collect())
    }

    /// Waits for weights of this kind.
    async fn wait_until(
        &self,
        diary: &DemoSteps,
        what: &str,
        is: impl Fn(&BTreeMap<MinerKey, u16>) -> bool,
    ) -> Result<BTreeMap<MinerKey, u16>> {
        let look = async || {
            let weights = self.read().await?;
            Ok::<_, Failure>(match is(&weights) {
                true => DemoFinding::There(weights),
                false => DemoFinding::NotYet(told_weights(&weights)),
            })
        };
        diary.wait_for(what, look).await
    }
}

fn unreachable(error: impl Into<anyhow::Error>) -> Failure {
    Failure::new(ErrorCode::ChainUnreachable, error)
}
