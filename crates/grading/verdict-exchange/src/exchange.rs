//! The exchange itself: reads what other validators show, and carries out what the adoption rule decides. The only part
//! that waits for anything.
//!
//! One bundle is replayed at a time, and only so many of one author in a day, so a hostile author can neither fill the
//! disk nor keep the processor. A decision is stored in one transaction: a validator that is killed has adopted a
//! bundle or has not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _};
use muster_audit::{
    AuditBundle, Calibration, RescorablePair, TokenScore, Verdict, judge_by, rescorable_pairs,
};
use muster_chain::Metagraph;
use muster_identity::Keypair;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_receipts::Fetcher;
use muster_store::StoreError;
use muster_validator_store::{
    AdoptedAudit, AuditOffer, AuditOrigin, OfferState, OfferedVerdict, Store, StoredEndorsement,
    StoredSelfTest,
};

use crate::adoption_rule::{
    AdoptionRule, Decision, OfferFacts, Rescoring, VerdictEffect, count_endorsers, deadline_of, effect_of,
};
use crate::agreement::compare_scores;
use crate::offer::read_bundle;
use crate::rescore_draw::{LEAST_RESCORED, RescoreDraw};
use crate::self_test::{genesis_of, is_news, standing_of};
use crate::shown_list::{MAX_LIST_BYTES, ShownBundle, ShownList, plan_fetches};
use crate::statements::{AuditEndorsement, SelfTestStatement, open_text, sign_text};

/// Blocks between two readings of the others' lists.
const READ_EVERY: u64 = 5;
/// Lists that are read at a time.
const READ_AT_ONCE: usize = 8;
/// The time in which only so many bundles of one author are read.
const DAY: Duration = Duration::from_secs(86_400);
/// Times that references are started for one bundle, and blocks between two of them.
const MOST_TRIES: u32 = 3;
const TRY_EVERY: u64 = 25;
/// References that are started for others' bundles in a day, at most.
const DAILY_RESCORINGS: usize = 24;

/// The validator, as the exchange uses it.
pub trait ExchangeBackend: Send + Sync + 'static {
    /// The subnet as the chain last showed it; `None` before the chain has answered.
    fn metagraph(&self) -> Option<Arc<Metagraph>>;

    /// Waits for the first block after this one, and returns its number.
    fn next_block(&self, block: u64) -> BoxFuture<'_, u64>;

    /// The hash of a finalised block; `None` if it is not known, or not yet.
    fn block_hash(&self, block: u64) -> BoxFuture<'_, Option<Digest>>;

    /// The other validators with a permit that serve pages.
    fn peers(&self) -> BTreeMap<ValidatorKey, SocketAddr>;

    /// This validator's own calibration of a model; `None` if it has none.
    fn calibration(&self, model: &str) -> Option<Calibration>;

    /// Has a reference of this validator score answers of a model again: the scores in the order of the pairs, `None`
    /// for one that it did not score. The error says in words why there is no reference.
    fn rescore(
        &self,
        model: String,
        pairs: Vec<RescorablePair>,
    ) -> BoxFuture<'_, Result<Vec<Option<Vec<TokenScore>>>, String>>;
}

/// The dependencies of a [`VerdictExchange`].
pub struct ExchangeDeps {
    /// The validator, as the exchange uses it.
    pub backend: Arc<dyn ExchangeBackend>,
    /// The validator's store.
    pub store: Arc<Store>,
    /// The validator's key: it draws pairs and signs statements.
    pub keypair: Keypair,
    /// The clock of the validator.
    pub clock: SharedClock,
    /// The validator's tasks, whose token stops the exchange.
    pub tasks: Tasks,
    /// The rule by which it adopts.
    pub rule: AdoptionRule,
}

/// Gathers and adopts other validators' bundles.
pub struct VerdictExchange {
    deps: ExchangeDeps,
    fetcher: Fetcher,
    /// The block at which the others' lists were read last.
    read_at: Option<u64>,
    /// Fetches that brought no text, by author.
    failures: BTreeMap<ValidatorKey, Vec<Timestamp>>,
    /// The attempts to score bundles again.
    tries: BTreeMap<(ValidatorKey, Digest), RescoreTries>,
    /// When references were started for others' bundles.
    rescorings: Vec<Timestamp>,
}

/// The attempts to score one bundle again that failed.
#[derive(Clone, Debug)]
struct RescoreTries {
    count: u32,
    not_before: u64,
    why: String,
}

/// The chain at one block.
struct Moment {
    block: u64,
    metagraph: Arc<Metagraph>,
    /// The genesis hash with its prefix `0x`.
    genesis: String,
    /// The genesis hash and the number of the subnet.
    subnet: (Digest, u16),
}

impl std::fmt::Debug for VerdictExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VerdictExchange")
    }
}

impl VerdictExchange {
    /// An exchange that has read nothing yet; `None` if no HTTP client can be made.
    pub fn new(deps: ExchangeDeps) -> Option<Self> {
        let fetcher = match Fetcher::new() {
            Ok(fetcher) => fetcher,
            Err(error) => {
                tracing::error!(error = %Causes(&error), "no verdicts of other validators can be gathered");
                return None;
            }
        };
        Some(Self {
            deps,
            fetcher,
            read_at: None,
            failures: BTreeMap::new(),
            tries: BTreeMap::new(),
            rescorings: Vec::new(),
        })
    }

    /// Gathers and adopts until the validator stops.
    ///
    /// # Errors
    /// The database fails.
    pub async fn run(mut self) -> Result<(), StoreError> {
        let stop = self.deps.tasks.token();
        let rounds = async {
            let mut block = 0;
            loop {
                block = self.deps.backend.next_block(block).await;
                self.round(block).await?;
            }
        };
        stop.run_until_cancelled(rounds).await.unwrap_or(Ok(()))
    }

    /// Reads the others' lists if it is time, and decides about every bundle that waits.
    async fn round(&mut self, block: u64) -> Result<(), StoreError> {
        let Some(moment) = self.moment(block) else {
            return Ok(());
        };
        if self
            .read_at
            .is_none_or(|read| block >= read.saturating_add(READ_EVERY))
        {
            let peers = self.deps.backend.peers();
            if !peers.is_empty() {
                self.read_at = Some(block);
                self.gather(&moment, peers).await?;
            }
        }
        for offer in self.deps.store.open_offers().await? {
            self.decide(&moment, offer).await?;
        }
        let now = self.deps.clock.now();
        self.rescorings.retain(|at| now.since(*at) < DAY);
        self.failures.retain(|_, at| {
            at.retain(|at| now.since(*at) < DAY);
            !at.is_empty()
        });
        Ok(())
    }

    fn moment(&self, block: u64) -> Option<Moment> {
        let metagraph = self.deps.backend.metagraph()?;
        let genesis = self.deps.store.genesis();
        let subnet = (genesis_of(&genesis)?, metagraph.netuid.0);
        Some(Moment {
            block,
            metagraph,
            genesis,
            subnet,
        })
    }
}

// Gathering.

impl VerdictExchange {
    async fn gather(
        &mut self,
        moment: &Moment,
        peers: BTreeMap<ValidatorKey, SocketAddr>,
    ) -> Result<(), StoreError> {
        let fetcher = &self.fetcher;
        let readings: Vec<_> = peers
            .into_iter()
            .map(|(peer, address)| {
                async move { (peer, address, read_list(fetcher, peer, address).await) }.boxed()
            })
            .collect();
        let lists: Vec<_> = stream::iter(readings)
            .buffer_unordered(READ_AT_ONCE)
            .collect()
            .await;
        for (peer, address, list) in lists {
            if let Some(list) = list {
                self.read_shown(moment, peer, address, list).await?;
            }
        }
        Ok(())
    }

    async fn read_shown(
        &mut self,
        moment: &Moment,
        peer: ValidatorKey,
        address: SocketAddr,
        list: ShownList,
    ) -> Result<(), StoreError> {
        let now = self.deps.clock.now();
        if let Some(text) = &list.self_test
            && let Some(test) = open_text::<SelfTestStatement>(text, peer, moment.subnet)
        {
            let stored = StoredSelfTest {
                validator: peer,
                tested_at: test.tested_at,
                statement: text.clone(),
                seen_at: now,
            };
            let known = self.deps.store.newest_self_tests().await?;
            let newest = known.iter().find(|known| known.validator == peer);
            if is_news(&test, newest.map(|known| known.tested_at), now) {
                self.deps.store.put_self_test(&stored).await?;
            }
        }
        let tally = self.deps.store.tally_author(peer, now.minus(DAY)).await?;
        let failures = self.failures.get(&peer).map_or(0, Vec::len);
        for shown in plan_fetches(&list.bundles, &tally, failures) {
            self.read_bundle(moment, peer, address, shown).await?;
        }
        for statement in list.endorsements {
            if let Some(read) = open_text::<AuditEndorsement>(&statement, peer, moment.subnet) {
                let stored = StoredEndorsement {
                    digest: read.bundle,
                    validator: peer,
                    statement,
                    seen_at: now,
                };
                self.deps.store.put_endorsement(&stored).await?;
            }
        }
        Ok(())
    }

    /// Fetches, replays and stores one bundle.
    async fn read_bundle(
        &mut self,
        moment: &Moment,
        author: ValidatorKey,
        address: SocketAddr,
        shown: ShownBundle,
    ) -> Result<(), StoreError> {
        let path = format!("/audits/{}", shown.digest);
        // More than the list says is not read.
        let most = usize::try_from(shown.bytes).unwrap_or(usize::MAX);
        let text = match self.fetcher.fetch_text(address, &path, most).await {
            Ok(Some(text)) => text,
            Ok(None) | Err(_) => {
                let now = self.deps.clock.now();
                self.failures.entry(author).or_default().push(now);
                return Ok(());
            }
        };
        let is_its = AuditBundle::digest_of(&text) == shown.digest;
        let (genesis, metagraph) = (moment.genesis.clone(), Arc::clone(&moment.metagraph));
        // Signatures and resampling take seconds.
        let reading = tokio::task::spawn_blocking(move || {
            let read = if is_its {
                read_bundle(&text, author, &genesis, &metagraph).map(|read| read.says)
            } else {
                Err("the text that is served is not the one that is listed".to_owned())
            };
            (read, text)
        });
        let Ok((read, text)) = reading.await else {
            // The process stops.
            return Ok(());
        };
        let now = self.deps.clock.now();
        let (says, state, reason) = match read {
            Ok(says) => (Some(says), OfferState::Offered, None),
            Err(reason) => (None, OfferState::Refused, Some(reason)),
        };
        let offer = AuditOffer {
            digest: shown.digest,
            author,
            says,
            bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
            state,
            reason,
            seen_at: now,
            seen_block: moment.block,
            decided_at: (state == OfferState::Refused).then_some(now),
        };
        tracing::info!(bundle = %offer.digest, %author, state = offer.state.name(), reason = offer.reason, "another validator shows a bundle");
        let body = (state == OfferState::Offered).then_some(text.as_str());
        self.deps.store.put_offer(&offer, body).await
    }
}

async fn read_list(fetcher: &Fetcher, peer: ValidatorKey, address: SocketAddr) -> Option<ShownList> {
    match fetcher.fetch_text(address, "/audits", MAX_LIST_BYTES).await {
        Ok(text) => ShownList::parse(&text?),
        Err(error) => {
            tracing::debug!(%peer, error = %Causes(&error), "a validator's list of bundles cannot be read");
            None
        }
    }
}

// Adoption.

/// A bundle that waits, with what its decision rests on.
struct OpenOffer {
    offer: AuditOffer,
    says: OfferedVerdict,
    facts: OfferFacts,
    /// The validators whose statements count.
    endorsers: BTreeSet<ValidatorKey>,
}

impl VerdictExchange {
    async fn decide(&mut self, moment: &Moment, offer: AuditOffer) -> Result<(), StoreError> {
        let Some(says) = offer.says.clone() else {
            return Ok(());
        };
        let mut open = self.open(moment, offer, says).await?;
        let rule = self.deps.rule;
        let mut decision = rule.decide(&open.facts);
        if decision == Decision::Rescore {
            open.facts.rescoring = self.rescore(moment, &open).await?;
            decision = rule.decide(&open.facts);
        }
        self.carry_out(moment, open, decision).await
    }

    async fn open(
        &self,
        moment: &Moment,
        offer: AuditOffer,
        says: OfferedVerdict,
    ) -> Result<OpenOffer, StoreError> {
        let store = &self.deps.store;
        let now = self.deps.clock.now();
        let counting = store.counting_audits().await?;
        let statements: Vec<AuditEndorsement> = store
            .endorsements_of(offer.digest)
            .await?
            .iter()
            .filter_map(|stored| open_text(&stored.statement, stored.validator, moment.subnet))
            .collect();
        let me = ValidatorKey(self.deps.keypair.hotkey());
        let keys = (offer.author, me);
        let endorsers = count_endorsers(&statements, offer.digest, &says.verdict, keys, &moment.metagraph);
        let tests = store.newest_self_tests().await?;
        let test = tests.iter().find(|test| test.validator == offer.author);
        let test: Option<SelfTestStatement> =
            test.and_then(|test| open_text(&test.statement, offer.author, moment.subnet));
        let facts = OfferFacts {
            effect: effect_of(&says, offer.author, &counting),
            self_test: standing_of(test.as_ref(), now),
            rescoring: self.rescoring(moment, &offer, &says),
            endorsers: endorsers.len(),
            block: moment.block,
            deadline: deadline_of(offer.seen_block, moment.metagraph.tempo),
        };
        Ok(OpenOffer {
            offer,
            says,
            facts,
            endorsers,
        })
    }

    /// How far the own reference is with a bundle that it has not scored.
    fn rescoring(&self, moment: &Moment, offer: &AuditOffer, says: &OfferedVerdict) -> Rescoring {
        if self.deps.backend.calibration(&says.model).is_none() {
            let why = "this validator has no calibration of the model: [audit.calibrations] names one";
            return Rescoring::Unavailable(why.to_owned());
        }
        if moment.block < draw_block(offer) {
            return Rescoring::NotDrawn;
        }
        match self.tries.get(&(offer.author, offer.digest)) {
            Some(tries) if tries.count >= MOST_TRIES || moment.block < tries.not_before => {
                Rescoring::Unavailable(tries.why.clone())
            }
            _ if self.rescorings.len() >= DAILY_RESCORINGS => {
                Rescoring::Unavailable("references scored enough of others' bundles today".to_owned())
            }
            _ => Rescoring::Due,
        }
    }

    /// Scores drawn pairs again.
    async fn rescore(&mut self, moment: &Moment, open: &OpenOffer) -> Result<Rescoring, StoreError> {
        let (offer, model) = (&open.offer, open.says.model.clone());
        let block = draw_block(offer);
        let Some(hash) = self.deps.backend.block_hash(block).await else {
            return Ok(Rescoring::NotDrawn);
        };
        let (Some(text), Some(calibration)) = (
            self.deps.store.offer_body(offer.digest).await?,
            self.deps.backend.calibration(&model),
        ) else {
            return Ok(Rescoring::Unavailable(
                "its text is not there any more".to_owned(),
            ));
        };
        let draw = RescoreDraw::prove(&self.deps.keypair, moment.subnet, &offer.digest, &hash);
        let own = calibration.clone();
        let drawing = tokio::task::spawn_blocking(move || draw_pairs(&text, &own, draw));
        let (verdict, pairs) = match drawing.await {
            Ok(Ok(drawn)) => drawn,
            Ok(Err(why)) => return Ok(self.note_failure(moment, offer, MOST_TRIES, why)),
            Err(error) => return Ok(self.note_failure(moment, offer, 1, error.to_string())),
        };
        if verdict.name() != open.says.verdict {
            return Ok(Rescoring::OtherVerdict(verdict));
        }
        if pairs.len() < LEAST_RESCORED {
            let why = format!(
                "the bundle opens the words of {} answers that can be scored again, and {LEAST_RESCORED} are needed",
                pairs.len()
            );
            return Ok(self.note_failure(moment, offer, MOST_TRIES, why));
        }
        self.rescorings.push(self.deps.clock.now());
        let stated: Vec<Vec<TokenScore>> = pairs.iter().map(|pair| pair.stated.clone()).collect();
        let scores = match self.deps.backend.rescore(model, pairs).await {
            Ok(scores) => scores,
            Err(why) => return Ok(self.note_failure(moment, offer, 1, why)),
        };
        let compared: Vec<_> = stated
            .into_iter()
            .zip(scores)
            .filter_map(|(stated, own)| Some((stated, own?)))
            .collect();
        if compared.len() < LEAST_RESCORED {
            let why = format!("the own reference scored {} of the drawn pairs", compared.len());
            return Ok(self.note_failure(moment, offer, 1, why));
        }
        Ok(Rescoring::Scored(compare_scores(&calibration.bound(), &compared)))
    }

    fn note_failure(&mut self, moment: &Moment, offer: &AuditOffer, tries: u32, why: String) -> Rescoring {
        tracing::info!(bundle = %offer.digest, author = %offer.author, why, "a bundle was not scored again");
        let noted = self.tries.entry((offer.author, offer.digest));
        let noted = noted.or_insert_with(|| RescoreTries {
            count: 0,
            not_before: 0,
            why: String::new(),
        });
        noted.count = noted.count.saturating_add(tries);
        noted.not_before = moment.block.saturating_add(TRY_EVERY);
        noted.why.clone_from(&why);
        Rescoring::Unavailable(why)
    }

    async fn carry_out(
        &mut self,
        moment: &Moment,
        open: OpenOffer,
        decision: Decision,
    ) -> Result<(), StoreError> {
        let mut offer = open.offer.clone();
        let (state, reason) = match decision {
            Decision::Adopt(origin) => return self.adopt(moment, open, origin).await,
            // Rescoring has ended one way or the other.
            Decision::Rescore => return Ok(()),
            Decision::Wait(reason) => (OfferState::Offered, Some(reason.to_string())),
            Decision::Expire(reason) => (OfferState::NotAdoptedInTime, Some(reason.to_string())),
            Decision::Refuse(reason) => (OfferState::Refused, Some(reason)),
            Decision::SetAside => (OfferState::WithoutEffect, None),
        };
        if (offer.state, &offer.reason) == (state, &reason) {
            return Ok(());
        }
        (offer.state, offer.reason) = (state, reason);
        if state != OfferState::Offered {
            offer.decided_at = Some(self.deps.clock.now());
            self.tries.remove(&(offer.author, offer.digest));
            tracing::info!(bundle = %offer.digest, author = %offer.author, state = state.name(), reason = offer.reason, "a bundle of another validator is decided about");
        }
        self.deps.store.update_offer(&offer).await
    }

    async fn adopt(
        &mut self,
        moment: &Moment,
        open: OpenOffer,
        origin: AuditOrigin,
    ) -> Result<(), StoreError> {
        let now = self.deps.clock.now();
        let OpenOffer {
            mut offer,
            says,
            facts,
            endorsers,
        } = open;
        let Some(body) = self.deps.store.offer_body(offer.digest).await? else {
            return Ok(());
        };
        offer.state = OfferState::Adopted;
        offer.decided_at = Some(now);
        offer.reason = Some(match &facts.rescoring {
            Rescoring::Scored(agreement) if origin == AuditOrigin::Rescored => agreement.to_string(),
            Rescoring::Scored(_)
            | Rescoring::NotDrawn
            | Rescoring::Due
            | Rescoring::Unavailable(_)
            | Rescoring::OtherVerdict(_) => {
                let names: Vec<String> = endorsers.iter().map(ToString::to_string).collect();
                format!("signed by {}", names.join(", "))
            }
        });
        let audit = AdoptedAudit {
            digest: offer.digest,
            coldkey: says.coldkey,
            miners: says.miners,
            model: says.model,
            verdict: says.verdict,
            quality_per_mille: says.quality_per_mille,
            adopted_at: now,
            origin,
            author: Some(offer.author),
            through_bucket: says.through_bucket,
        };
        // Only a validator whose own reference agreed signs, so statements never rest on statements alone.
        let signed =
            (origin == AuditOrigin::Rescored).then(|| self.endorse(moment, &offer, facts.effect, now));
        self.deps
            .store
            .adopt_offer(&offer, &audit, &body, signed.as_ref())
            .await?;
        self.tries.remove(&(offer.author, offer.digest));
        tracing::warn!(
            bundle = %offer.digest, author = %offer.author, coldkey = %audit.coldkey, model = audit.model,
            verdict = audit.verdict, origin = origin.name(), reason = offer.reason,
            "another validator's verdict is adopted"
        );
        Ok(())
    }

    fn endorse(
        &self,
        moment: &Moment,
        offer: &AuditOffer,
        effect: VerdictEffect,
        now: Timestamp,
    ) -> StoredEndorsement {
        let (genesis, netuid) = moment.subnet;
        let validator = ValidatorKey(self.deps.keypair.hotkey());
        let statement = AuditEndorsement {
            genesis,
            netuid,
            bundle: offer.digest,
            validator,
            verdict: verdict_of(effect),
            block: draw_block(offer),
        };
        StoredEndorsement {
            digest: offer.digest,
            validator,
            statement: sign_text(&self.deps.keypair, &statement),
            seen_at: now,
        }
    }
}

/// The verdict of a bundle that was scored again and has this effect.
const fn verdict_of(effect: VerdictEffect) -> Verdict {
    match effect {
        VerdictEffect::Convicts => Verdict::Convicted,
        VerdictEffect::Lifts | VerdictEffect::Nothing => Verdict::Consistent,
        VerdictEffect::Halves => Verdict::Suspect,
    }
}

/// The block whose hash draws a bundle's pairs: the first after the one at which it was read.
const fn draw_block(offer: &AuditOffer) -> u64 {
    offer.seen_block.saturating_add(1)
}

/// The verdict by the own calibration, and the pairs to score again. The error says why there is none.
fn draw_pairs(
    text: &str,
    own: &Calibration,
    draw: RescoreDraw,
) -> Result<(Verdict, Vec<RescorablePair>), String> {
    let bundle: AuditBundle = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let told = |error: muster_audit::ReplayError| {
        format!(
            "by this validator's calibration it proves nothing: {}",
            Causes(&error)
        )
    };
    let verdict = judge_by(&bundle, own).map_err(told)?.verdict;
    let judged = AuditBundle {
        calibration: own.clone(),
        ..bundle
    };
    let pairs = rescorable_pairs(&judged).map_err(told)?;
    Ok((verdict, draw.choose(pairs, verdict)))
}
