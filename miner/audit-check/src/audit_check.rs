//! The shell around the comparisons: receives a validator's notices, stores what they state, and answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::wire::audits::{
    AuditMessage, AuditNotice, AuditReply, HeaderNotice, OutcomesNotice, SessionProofs, VerdictNotice,
};
use muster_protocol::{MinerKey, ValidatorKey};
use muster_response_proof::audit_limits::MAX_SESSION_PROOFS;
use muster_response_proof::{BucketHeader, Envelope};
use muster_store::StoreError;
use uuid::Uuid;

use crate::evidence::{BundleOpinion, ReadBundle, compare_header, judge_bundle};
use crate::fetch::{BundleFetch, FetchStep};
use crate::finding::{Finding, FindingKind, about_bucket};
use crate::header_check::{CheckedHeader, HeaderContext, check_header, compare_leaf};
use crate::omissions::find_withheld;
use crate::outcome_check::check_outcomes;
use crate::store::{AuditCheckStore, KEPT};

/// How long a validator may take to reveal a draw and its outcomes: seven days after the draw, and a day to connect.
const LATEST_REVEAL: Duration = Duration::from_secs(8 * 86_400);

/// A miner's audit check of spot checks. Clones are the same one.
#[derive(Clone, Debug)]
pub struct AuditCheck {
    store: AuditCheckStore,
    me: MinerKey,
    clock: SharedClock,
    blocks: Arc<SeenBlocks>,
}

/// The blocks that the miner knows of; 0 before it knows one.
#[derive(Debug, Default)]
struct SeenBlocks {
    first: AtomicU64,
    newest: AtomicU64,
}

impl AuditCheck {
    /// A audit check with these tables.
    pub fn new(store: AuditCheckStore, me: MinerKey, clock: SharedClock) -> Self {
        Self {
            store,
            me,
            clock,
            blocks: Arc::default(),
        }
    }

    /// The tables of this audit check.
    pub fn store(&self) -> &AuditCheckStore {
        &self.store
    }

    /// Notes a block of the chain.
    pub fn see_block(&self, block: u64) {
        let _ = self
            .blocks
            .first
            .compare_exchange(0, block, Ordering::Relaxed, Ordering::Relaxed);
        self.blocks.newest.fetch_max(block, Ordering::Relaxed);
    }

    /// Keeps what an executor reports of its session. A message that is no such list is dropped.
    ///
    /// # Errors
    /// The database fails.
    pub async fn note_proofs(&self, told: &SessionProofs) -> Result<(), StoreError> {
        if told.session.parse::<Uuid>().is_err() || told.proofs.len() > MAX_SESSION_PROOFS {
            tracing::warn!(attempt = %told.job_uuid, "an executor told proofs of no session");
            return Ok(());
        }
        self.store.put_proofs(told).await
    }

    /// The audit check's part of a connection with a validator.
    pub fn converse(&self, validator: ValidatorKey) -> AuditCheckConversation {
        AuditCheckConversation {
            audit_check: self.clone(),
            validator,
            fetching: None,
        }
    }

    fn context(&self, validator: ValidatorKey) -> HeaderContext {
        let known = |block: &AtomicU64| Some(block.load(Ordering::Relaxed)).filter(|block| *block > 0);
        HeaderContext {
            validator,
            last: None,
            same: None,
            head: known(&self.blocks.newest),
            up_since: known(&self.blocks.first),
        }
    }
}

/// One connection with a validator.
#[derive(Debug)]
pub struct AuditCheckConversation {
    audit_check: AuditCheck,
    validator: ValidatorKey,
    /// The verdict whose bundle is on its way, and the number of its notice.
    fetching: Option<(u64, VerdictNotice, BundleFetch)>,
}

impl AuditCheckConversation {
    /// Receives a notice. Returns the answers to it, in order.
    ///
    /// # Errors
    /// The database fails. The validator sends the notice again on the next connection.
    pub async fn take_message(&mut self, message: AuditMessage) -> Result<Vec<AuditReply>, StoreError> {
        let taken = |number| vec![AuditReply::Taken { number }];
        let number = message.number;
        match message.notice {
            AuditNotice::Header(notice) => {
                self.take_header(&notice).await?;
                Ok(taken(number))
            }
            AuditNotice::Outcomes(notice) => {
                self.take_outcomes(&notice).await?;
                Ok(taken(number))
            }
            AuditNotice::Verdict(notice) => self.begin_fetch(number, *notice).await,
            AuditNotice::BundlePart(part) => match &mut self.fetching {
                Some((_, _, fetch)) if fetch.bundle() == part.bundle => {
                    let step = fetch.take(&part);
                    self.go_on(step).await
                }
                Some(_) | None => Ok(Vec::new()),
            },
            AuditNotice::AppealAnswer(answer) => {
                tracing::info!(validator = %self.validator, bundle = %answer.bundle, open = answer.is_open, words = answer.words,
                    "a validator answers an appeal");
                self.audit_check
                    .store
                    .put_appeal_answer(self.validator, &answer)
                    .await?;
                Ok(Vec::new())
            }
            AuditNotice::Done => {
                self.look_back().await?;
                let appeals = self.audit_check.store.unanswered_appeals(self.validator).await?;
                let appeals = appeals.into_iter().map(|appeal| AuditReply::Appeal { appeal });
                Ok(appeals.chain(taken(number)).collect())
            }
        }
    }

    async fn take_header(&self, notice: &HeaderNotice) -> Result<(), StoreError> {
        let store = &self.audit_check.store;
        if store.is_full(self.validator).await? {
            tracing::warn!(validator = %self.validator, "a validator has sent more leaves than this miner keeps");
            return Ok(());
        }
        let stated = Envelope::<BucketHeader>::from_text(&notice.header).and_then(|one| Ok(one.statement()?));
        let bucket = stated.as_ref().ok().map(|header| header.bucket.0);
        let same = match bucket {
            Some(bucket) => store
                .header(self.validator, bucket)
                .await?
                .map(|(known, _)| known),
            None => None,
        };
        let context = HeaderContext {
            last: store.last_header(self.validator).await?,
            same,
            ..self.audit_check.context(self.validator)
        };
        match check_header(notice, &context) {
            Ok(checked) => self.keep_header(notice, checked).await,
            Err(finding) => self.keep_findings(vec![finding]).await,
        }
    }

    async fn keep_header(&self, notice: &HeaderNotice, mut checked: CheckedHeader) -> Result<(), StoreError> {
        let store = &self.audit_check.store;
        let bucket = checked.header.bucket.0;
        let mut findings = std::mem::take(&mut checked.findings);
        for leaf in &checked.leaves {
            let (own, at) = store.known_of(self.validator, leaf).await?;
            findings.extend(compare_leaf(leaf, bucket, own, at));
        }
        store
            .put_header(self.validator, notice, &checked, self.audit_check.clock.now())
            .await?;
        self.keep_findings(findings).await
    }

    async fn take_outcomes(&self, notice: &OutcomesNotice) -> Result<(), StoreError> {
        let store = &self.audit_check.store;
        let Some((_, header)) = store.header(self.validator, notice.bucket).await? else {
            // This miner was away longer than the header was offered, so it cannot check the draw.
            return Ok(());
        };
        let stated = Envelope::<BucketHeader>::from_text(&header).and_then(|one| Ok(one.statement()?));
        let header = stated.map_err(|error| StoreError::corrupt("header", error.to_string()))?;
        let leaves = store.leaves(self.validator, notice.bucket).await?;
        match check_outcomes(notice, &header, self.audit_check.me, &leaves) {
            Ok(checked) => {
                let now = self.audit_check.clock.now();
                store
                    .put_outcomes(self.validator, notice.bucket, checked.outcomes, now)
                    .await?;
                self.keep_findings(checked.findings).await
            }
            Err(finding) => self.keep_findings(vec![finding]).await,
        }
    }

    async fn begin_fetch(
        &mut self,
        number: u64,
        notice: VerdictNotice,
    ) -> Result<Vec<AuditReply>, StoreError> {
        tracing::warn!(validator = %self.validator, bundle = %notice.bundle, verdict = notice.verdict, model = notice.model,
            "a validator has a verdict about this miner's answers: `muster miner audits` shows it");
        let fetch = match BundleFetch::new(&notice) {
            Ok(fetch) => fetch,
            Err(opinion) => return self.keep_unread(number, &notice, opinion).await,
        };
        if let Some(text) = self.audit_check.store.bundle(notice.bundle).await? {
            // Another validator has shown it.
            return self.keep_read(number, notice, text).await;
        }
        let bundle = notice.bundle;
        self.fetching = Some((number, notice, fetch));
        Ok(vec![AuditReply::Fetch { bundle, offset: 0 }])
    }

    async fn go_on(&mut self, step: FetchStep) -> Result<Vec<AuditReply>, StoreError> {
        let Some((number, notice, fetch)) = self.fetching.take() else {
            return Ok(Vec::new());
        };
        match step {
            FetchStep::Next(offset) => {
                let bundle = fetch.bundle();
                self.fetching = Some((number, notice, fetch));
                Ok(vec![AuditReply::Fetch { bundle, offset }])
            }
            FetchStep::Whole(text) => self.keep_read(number, notice, text).await,
            FetchStep::Failed(why) => {
                let opinion = BundleOpinion::ProvesNothing(why.to_owned());
                self.keep_unread(number, &notice, opinion).await
            }
        }
    }

    async fn keep_read(
        &self,
        number: u64,
        notice: VerdictNotice,
        text: String,
    ) -> Result<Vec<AuditReply>, StoreError> {
        let me = self.audit_check.me;
        // Signatures and resampling take seconds.
        let judging = tokio::task::spawn_blocking(move || {
            let read = judge_bundle(&text, &notice, me);
            (read, notice, text)
        });
        let Ok((read, notice, text)) = judging.await else {
            tracing::error!("the replay of a bundle about this miner ended early");
            return Ok(Vec::new());
        };
        let now = self.audit_check.clock.now();
        let store = &self.audit_check.store;
        store
            .put_verdict(self.validator, &notice, &read, Some(text), now)
            .await?;
        self.keep_disagreement(&notice, &read.opinion).await?;
        let mut findings = Vec::new();
        let own = read
            .headers
            .iter()
            .filter(|shown| shown.validator == self.validator);
        for shown in own {
            let taken = store.header(self.validator, shown.bucket).await?;
            findings.extend(compare_header(shown, taken.map(|(known, _)| known).as_ref()));
        }
        self.keep_findings(findings).await?;
        Ok(vec![AuditReply::Taken { number }])
    }

    async fn keep_disagreement(
        &self,
        notice: &VerdictNotice,
        opinion: &BundleOpinion,
    ) -> Result<(), StoreError> {
        if opinion.is_disagreement() {
            let finding = Finding::new(FindingKind::FalseVerdict, notice.bundle, opinion.words());
            self.keep_findings(vec![finding]).await?;
        }
        Ok(())
    }

    async fn keep_unread(
        &self,
        number: u64,
        notice: &VerdictNotice,
        opinion: BundleOpinion,
    ) -> Result<Vec<AuditReply>, StoreError> {
        let read = ReadBundle {
            opinion,
            subnet: None,
            headers: Vec::new(),
        };
        let now = self.audit_check.clock.now();
        self.audit_check
            .store
            .put_verdict(self.validator, notice, &read, None, now)
            .await?;
        self.keep_disagreement(notice, &read.opinion).await?;
        Ok(vec![AuditReply::Taken { number }])
    }

    /// Looks for what should have come by now.
    async fn look_back(&self) -> Result<(), StoreError> {
        let (store, now) = (&self.audit_check.store, self.audit_check.clock.now());
        let newest = store.last_header(self.validator).await?.map(|last| last.bucket);
        let unlisted = store.unlisted(self.validator, now.minus(KEPT)).await?;
        let withheld = unlisted
            .iter()
            .filter_map(|answer| find_withheld(answer, newest, now));
        let mut findings: Vec<Finding> = withheld.collect();
        for bucket in store.unrevealed(self.validator, now.minus(LATEST_REVEAL)).await? {
            let words = "its draw and the outcomes were not shown within eight days";
            findings.push(Finding::new(FindingKind::NoReveal, about_bucket(bucket), words));
        }
        self.keep_findings(findings).await
    }

    async fn keep_findings(&self, findings: Vec<Finding>) -> Result<(), StoreError> {
        let now = self.audit_check.clock.now();
        for new in self
            .audit_check
            .store
            .put_findings(self.validator, findings, now)
            .await?
        {
            tracing::warn!(validator = %self.validator, kind = new.kind.name(), about = new.about, words = new.words,
                "a validator's spot checks are not right: `muster miner audits` lists the findings");
        }
        Ok(())
    }
}
