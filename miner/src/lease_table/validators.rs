//! The lease table's answers to validators.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_protocol::receipt::MAX_AHEAD;
use muster_protocol::wire::checkpoints::DrainJob;
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::{DeclineJob, GenericError, InitialJobRequest, JobRequest, ShorterJob};
use muster_protocol::wire::muster::{
    CancelJob, ListedImage, MAX_LISTED_IMAGES, ReceiptCountersigned, WhitelistNotice,
};
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{
    AttemptId, ExecutorClass, ExecutorToken, ImageId, JobRejectionReason, Manifest, Receipt, ReceiptKind,
    ReceiptPayload, Timestamp, ValidatorKey,
};

use super::{
    ActiveLease, ConnectionId, Effect, JobOffer, LeaseStatus, LeaseTable, LeaseWrite, ValidatorConnection,
};
use crate::admission::{
    self, AdmissionDecision, AdmissionInputs, AdmissionRequest, AttemptHistory, OfferFlaw,
};
use crate::lease::{self, Lease, has_private_image};
use crate::validator_shares::shares::{ValidatorShare, ValidatorStakes, share_of};
use crate::validator_shares::unpaid::unpaid_allowance;

impl LeaseTable {
    pub(super) fn on_joined(&mut self, id: ConnectionId, connection: ValidatorConnection) -> Vec<Effect> {
        self.connections.insert(id, connection);
        let validator = connection.validator;
        let mut effects = vec![tell(id, self.announcement(connection.features))];
        let mut open: Vec<_> = self
            .active
            .values_mut()
            .filter(|active| active.lease.validator() == validator)
            .collect();
        open.sort_unstable_by_key(|active| active.lease.attempt());
        for active in open {
            active.audience.push(id);
            effects.extend(send_history(active, id));
        }
        let owed = self.owed.get(&validator).into_iter().flatten();
        effects.extend(owed.map(|attempt| Effect::Retell {
            to: id,
            attempt: *attempt,
        }));
        effects
    }

    pub(super) fn on_left(&mut self, id: ConnectionId) -> Vec<Effect> {
        self.connections.remove(&id);
        let mut effects = Vec::new();
        for active in self.active.values_mut() {
            if let Some(heir) = active.remove_connection(id) {
                effects.extend(send_history(active, heir));
            }
        }
        effects
    }

    pub(super) fn on_offered(
        &mut self,
        id: ConnectionId,
        offered: JobOffer,
        token: ExecutorToken,
        now: Timestamp,
    ) -> Vec<Effect> {
        let Some(validator) = self.validator_of(id) else {
            return vec![];
        };
        let JobOffer {
            request,
            receipt,
            served,
            stakes,
            unaffordable,
        } = offered;
        let attempt = request.job_uuid;
        let unlisted = self.find_unlisted_image(validator, &request);
        let receipt = receipt.and_then(|receipt| self.check_age(receipt, now));
        let offer = AdmissionRequest {
            attempt,
            class: request.executor_class,
            validator,
            private_image: has_private_image(&request),
            runs_unbroken: lease::runs_unbroken(&request),
        };
        let (manifest, private) = (self.manifest(), self.private_manifest());
        let lasts = self.rules.patience.job_limit(&request);
        let share = self.share_for(&offer, &manifest, &stakes, lasts, now);
        let facts = AdmissionInputs {
            manifest: &manifest,
            leased: self.count_leases(offer.class),
            takers: private.count(offer.class),
            leased_takers: self.count_private_leases(offer.class),
            known: self.recall(attempt),
            served,
            draining: self.draining,
            lend: self.rules.patience.lend,
            share,
            unlisted,
            unaffordable: unaffordable.as_deref(),
            flaw: receipt.as_ref().err(),
        };
        match (admission::decide(&offer, &facts), receipt) {
            (AdmissionDecision::Accept, Ok(receipt)) => {
                self.waiting.remove(offer.class, validator);
                let lease = Lease::new(validator, request, token, self.rules.patience, now);
                self.open_lease(id, lease, receipt, share.held >= share.places, now)
            }
            (AdmissionDecision::Repeat, Ok(_)) => self.repeat(id, attempt),
            (
                AdmissionDecision::Decline {
                    reason,
                    message,
                    shorter_by,
                },
                _,
            ) => {
                self.note_decline(&offer, reason, share, now);
                let receipts = self.collect_excuses(id, reason, offer);
                let decline = DeclineJob {
                    job_uuid: attempt,
                    message,
                    reason,
                    receipts,
                    context: shorter_by.map(|by| {
                        let shorter_by_s = by.as_secs();
                        ShorterJob { shorter_by_s }.context()
                    }),
                };
                vec![tell(id, MinerToValidator::V0DeclineJobRequest(decline))]
            }
            // `decide` accepts nothing that has a flaw.
            (AdmissionDecision::Accept | AdmissionDecision::Repeat, Err(_)) => vec![],
        }
    }

    /// Opens the lease of an accepted offer. `receipt` is its started receipt.
    fn open_lease(
        &mut self,
        id: ConnectionId,
        lease: Lease,
        receipt: Receipt,
        is_beyond_share: bool,
        now: Timestamp,
    ) -> Vec<Effect> {
        let (attempt, validator) = (lease.attempt(), lease.validator());
        let mut effects = vec![
            Effect::Write(LeaseWrite::Opened {
                attempt,
                validator,
                at: now,
            }),
            Effect::Write(LeaseWrite::Receipt(Box::new(receipt.clone()))),
        ];
        effects.extend(lease.history().iter().map(|message| tell(id, message.clone())));
        effects.extend(self.send_countersigned(id, &receipt));
        effects.push(Effect::Start {
            token: lease.token().clone(),
            class: lease.class(),
            private_image: lease.has_private_image(),
            lasts: lease.longest(),
        });
        let active = ActiveLease {
            beyond_share_since: is_beyond_share.then_some(now),
            ..ActiveLease::new(lease, receipt, id)
        };
        self.active.insert(attempt, active);
        effects
    }

    /// The share of an offer's validator in the executors that the offer asks for.
    fn share_for(
        &self,
        offer: &AdmissionRequest,
        manifest: &Manifest,
        stakes: &ValidatorStakes,
        lasts: Duration,
        now: Timestamp,
    ) -> ValidatorShare {
        let (class, rules) = (offer.class, self.rules.shares);
        ValidatorShare {
            places: share_of(manifest.count(class), stakes, rules.floor),
            held: self.count_leases_of(class, offer.validator),
            is_contested: self.waiting.has_other(class, offer.validator, now),
            lasts,
            beyond: rules.beyond,
            unpaid: self.unpaid.of(offer.validator, class),
            unpaid_allowance: unpaid_allowance(manifest.count(class), stakes, &self.rules.unpaid),
        }
    }

    /// Notes a validator that found no executor although it has less than its share: others must leave it one.
    fn note_decline(
        &mut self,
        offer: &AdmissionRequest,
        reason: JobRejectionReason,
        share: ValidatorShare,
        now: Timestamp,
    ) {
        if reason == JobRejectionReason::Busy && share.held < share.places && !self.draining {
            self.waiting.note(offer.class, offer.validator, now);
        }
    }

    /// A validator's whitelist is valid until it publishes another. Executors fetch the images of all whitelists.
    pub(super) fn on_listed(&mut self, id: ConnectionId, mut notice: WhitelistNotice) -> Vec<Effect> {
        let Some(validator) = self.validator_of(id) else {
            return vec![];
        };
        notice.images.truncate(MAX_LISTED_IMAGES);
        if self.listed.get(&validator) == Some(&notice) {
            return vec![];
        }
        self.listed.insert(validator, notice);
        vec![Effect::Shelve(self.list_images())]
    }

    /// The list of a validator that is no longer served goes with its permit.
    pub(super) fn on_permitted(&mut self, served: &BTreeSet<ValidatorKey>) -> Vec<Effect> {
        let before = self.listed.len();
        self.listed.retain(|validator, _| served.contains(validator));
        if self.listed.len() == before {
            return vec![];
        }
        vec![Effect::Shelve(self.list_images())]
    }

    /// The images of all lists, each once and with the number of the first validator that lists it.
    fn list_images(&self) -> Vec<ListedImage> {
        let mut images: BTreeMap<(ImageId, ExecutorClass), ListedImage> = BTreeMap::new();
        for (share, notice) in (0..).zip(self.listed.values()) {
            for listed in &notice.images {
                let entry = images.entry((listed.image, listed.class));
                entry.or_insert_with(|| ListedImage {
                    share: Some(share),
                    ..listed.clone()
                });
            }
        }
        images.into_values().collect()
    }

    /// The image of a sealed session, if its validator has published a whitelist without it.
    fn find_unlisted_image(&self, validator: ValidatorKey, offer: &InitialJobRequest) -> Option<ImageId> {
        let image = offer.streaming_details.as_ref()?.muster.as_ref()?.image;
        let listed = self.listed.get(&validator)?;
        (!listed.lists(image)).then_some(image)
    }

    /// An attempt is forgotten after a while, and a receipt must have aged by then, or it would run the attempt again:
    /// one that is taken `MAX_AHEAD` of its date is too old again within that while.
    fn check_age(&self, receipt: Receipt, now: Timestamp) -> Result<Receipt, OfferFlaw> {
        let written = receipt.payload.timestamp();
        let flaw = |why: &str| Err(OfferFlaw::Receipt(format!("the started receipt {why}")));
        if written > now.plus(MAX_AHEAD) {
            return flaw("lies too far in the future");
        }
        if written.plus(self.rules.memory) <= now.plus(MAX_AHEAD) {
            return flaw("is too old to be taken");
        }
        Ok(receipt)
    }

    fn recall(&self, attempt: AttemptId) -> AttemptHistory {
        if let Some(active) = self.active.get(&attempt) {
            return AttemptHistory::Leased(active.lease.validator());
        }
        match self.past.get(&attempt) {
            None => AttemptHistory::New,
            Some(past) => match past.status {
                LeaseStatus::Open | LeaseStatus::Owed | LeaseStatus::Settled => {
                    AttemptHistory::Leased(past.validator)
                }
                LeaseStatus::Cancelled => AttemptHistory::Cancelled(past.validator),
            },
        }
    }

    /// Receipts of the executors of that class that are really at work. A ComputeHorde validator is shown started
    /// receipts, as ComputeHorde's miners do; they excuse for some seconds only. A Muster validator is shown the
    /// accepted receipts too, which cover the whole of each job.
    fn collect_excuses(
        &self,
        id: ConnectionId,
        reason: JobRejectionReason,
        offer: AdmissionRequest,
    ) -> Vec<Receipt> {
        match reason {
            JobRejectionReason::Busy => {
                let mut busy: Vec<_> = self
                    .active
                    .values()
                    .filter(|active| active.lease.class() == offer.class && active.lease.holds_executor())
                    .collect();
                busy.sort_unstable_by_key(|active| active.lease.attempt());
                let is_muster = self.connections.get(&id).is_some_and(|known| known.muster);
                busy.into_iter()
                    .flat_map(|active| {
                        let accepted = active.accepted.as_deref().filter(|_| is_muster);
                        std::iter::once(&active.started).chain(accepted).cloned()
                    })
                    .collect()
            }
            JobRejectionReason::Unknown
            | JobRejectionReason::InvalidSignature
            | JobRejectionReason::NoMinerForJob
            | JobRejectionReason::ValidatorBlacklisted
            | JobRejectionReason::InvalidReceipt => vec![],
        }
    }

    /// The earlier answer and the history since.
    fn repeat(&mut self, id: ConnectionId, attempt: AttemptId) -> Vec<Effect> {
        match self.active.get_mut(&attempt) {
            Some(active) => {
                active.set_speaker(id);
                send_history(active, id).collect()
            }
            None => vec![Effect::Retell { to: id, attempt }],
        }
    }

    pub(super) fn on_payload(
        &mut self,
        id: ConnectionId,
        request: Box<JobRequest>,
        now: Timestamp,
    ) -> Vec<Effect> {
        let attempt = request.job_uuid;
        if !self.note_speaker(id, attempt) {
            let owed = self.past.get(&attempt).filter(|past| {
                past.status == LeaseStatus::Owed && self.validator_of(id) == Some(past.validator)
            });
            return match owed {
                Some(_) => vec![Effect::Retell { to: id, attempt }],
                None => {
                    let details = format!("Received JobRequest for unknown job_uuid: {attempt}");
                    vec![self.complain(id, attempt, details)]
                }
            };
        }
        match self.drive(attempt, lease::Event::Payload(request), now) {
            Ok(effects) => effects,
            Err(refused) => vec![self.complain(id, attempt, refused.to_string())],
        }
    }

    pub(super) fn on_cancelled(
        &mut self,
        id: ConnectionId,
        cancel: CancelJob,
        now: Timestamp,
    ) -> Vec<Effect> {
        if !self.note_speaker(id, cancel.job_uuid) {
            return vec![];
        }
        let event = lease::Event::Cancelled {
            reason: cancel.reason,
        };
        self.drive(cancel.job_uuid, event, now).unwrap_or_default()
    }

    /// Passes a validator's message about an attempt on to its executor.
    pub(super) fn on_forwarded(
        &mut self,
        id: ConnectionId,
        attempt: AttemptId,
        message: Box<MinerToExecutor>,
        now: Timestamp,
    ) -> Vec<Effect> {
        if !self.note_speaker(id, attempt) {
            return vec![];
        }
        let event = lease::Event::Forwarded(message);
        self.drive(attempt, event, now).unwrap_or_default()
    }

    /// Asks the programs of these attempts to save, if they have checkpoints: their executors leave after `lead`.
    pub(super) fn drain_jobs(
        &mut self,
        attempts: &BTreeSet<AttemptId>,
        lead: Duration,
        now: Timestamp,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for attempt in attempts.iter().copied() {
            let drain = MinerToExecutor::MusterDrain(DrainJob {
                job_uuid: attempt,
                lead_s: lead.as_secs(),
            });
            let event = lease::Event::Forwarded(Box::new(drain));
            effects.extend(self.drive(attempt, event, now).unwrap_or_default());
        }
        effects
    }

    pub(super) fn on_receipt(
        &mut self,
        id: ConnectionId,
        receipt: Box<Receipt>,
        now: Timestamp,
    ) -> Vec<Effect> {
        let attempt = receipt.payload.attempt();
        let kind = receipt.payload.kind();
        let Some(validator) = self.validator_of(id) else {
            return vec![];
        };
        let (owner, held) = match (self.active.get(&attempt), self.past.get(&attempt)) {
            (Some(active), _) => (active.lease.validator(), (active.accepted.is_some(), false)),
            (None, Some(past)) => (past.validator, (past.accepted_receipt, past.finished_receipt)),
            (None, None) => return vec![self.complain(id, attempt, no_such_attempt(attempt))],
        };
        if owner != validator {
            return vec![self.complain(id, attempt, no_such_attempt(attempt))];
        }
        let held = match kind {
            ReceiptKind::Started => true,
            ReceiptKind::Accepted => held.0,
            ReceiptKind::Finished => held.1,
        };
        if held {
            return self.if_muster(
                id,
                Effect::RepeatReceipt {
                    to: id,
                    attempt,
                    kind,
                },
            );
        }
        let mut effects = Vec::new();
        match kind {
            ReceiptKind::Started => {}
            ReceiptKind::Accepted => {
                if let Some(active) = self.active.get_mut(&attempt) {
                    active.accepted = Some(receipt.clone());
                } else if let Some(past) = self.past.get_mut(&attempt) {
                    past.accepted_receipt = true;
                }
            }
            ReceiptKind::Finished => {
                // A validator that signs the end of a running attempt no longer waits for it.
                let reason = "the validator has closed the attempt with a finished receipt".to_owned();
                let event = lease::Event::Cancelled { reason };
                effects.extend(self.drive(attempt, event, now).unwrap_or_default());
                if is_paid(&receipt) {
                    let past = self.past.get_mut(&attempt);
                    let unpaid = past.and_then(|past| past.unpaid.take());
                    self.forget_unpaid(validator, unpaid);
                }
                effects.extend(self.settle(attempt));
            }
        }
        let answer = self.send_countersigned(id, &receipt);
        effects.push(Effect::Write(LeaseWrite::Receipt(receipt)));
        effects.extend(answer);
        effects
    }

    fn settle(&mut self, attempt: AttemptId) -> Option<Effect> {
        let past = self.past.get_mut(&attempt)?;
        past.finished_receipt = true;
        let validator = past.validator;
        match past.status {
            LeaseStatus::Open | LeaseStatus::Owed => past.status = LeaseStatus::Settled,
            LeaseStatus::Settled | LeaseStatus::Cancelled => return None,
        }
        self.forget_owed(validator, attempt);
        Some(Effect::Write(LeaseWrite::Settled(attempt)))
    }

    /// Whether this connection may speak about an open lease; if so, the lease speaks to it from now on.
    fn note_speaker(&mut self, id: ConnectionId, attempt: AttemptId) -> bool {
        let validator = self.validator_of(id);
        match self.active.get_mut(&attempt) {
            Some(active) if Some(active.lease.validator()) == validator => {
                active.set_speaker(id);
                true
            }
            Some(_) | None => false,
        }
    }

    fn send_countersigned(&self, id: ConnectionId, receipt: &Receipt) -> Vec<Effect> {
        let message = ReceiptCountersigned {
            receipt: receipt.clone(),
        };
        self.if_muster(
            id,
            tell(
                id,
                MinerToValidator::MusterReceiptCountersigned(Box::new(message)),
            ),
        )
    }

    fn if_muster(&self, id: ConnectionId, effect: Effect) -> Vec<Effect> {
        if self.is_muster(id) { vec![effect] } else { vec![] }
    }

    fn is_muster(&self, id: ConnectionId) -> bool {
        let connection = self.connections.get(&id);
        connection.is_some_and(|connection| connection.muster)
    }

    /// A complaint about an attempt. Only a validator that is Muster gets the attempt in a field of its own.
    fn complain(&self, to: ConnectionId, attempt: AttemptId, details: String) -> Effect {
        tell(
            to,
            MinerToValidator::GenericError(GenericError {
                details: Some(details),
                job_uuid: Some(attempt).filter(|_| self.is_muster(to)),
            }),
        )
    }
}

/// The whole history of a lease, for a connection that may have missed a part. A repetition has no effect on a
/// validator.
fn send_history(active: &ActiveLease, to: ConnectionId) -> impl Iterator<Item = Effect> {
    active
        .lease
        .history()
        .iter()
        .map(move |message| tell(to, message.clone()))
}

fn tell(to: ConnectionId, message: MinerToValidator) -> Effect {
    Effect::Tell {
        to: vec![to],
        message: Box::new(message),
    }
}

/// Whether a receipt pays anything.
fn is_paid(receipt: &Receipt) -> bool {
    match &receipt.payload {
        ReceiptPayload::Finished(finished) => finished.score_micros().is_some_and(|micros| micros > 0),
        ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) => false,
    }
}

fn no_such_attempt(attempt: AttemptId) -> String {
    format!("Received a receipt for unknown job_uuid: {attempt}")
}

/// A generic error for an executor.
pub(super) fn executor_complaint(details: String) -> Box<MinerToExecutor> {
    Box::new(MinerToExecutor::GenericError(GenericError {
        details: Some(details),
        job_uuid: None,
    }))
}
