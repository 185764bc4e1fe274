//! Sends the miner the proofs that a session has signed. The miner compares them with the validator's log of answers. A
//! report that does not arrive costs comparisons and nothing else.

use std::sync::Arc;
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::wire::audits::{SessionProofs, SignedProof};
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_response_proof::audit_limits::MAX_SESSION_PROOFS;
use muster_response_proof::{Envelope, ResponseProof, StreamEnd};
use muster_sealing_proxy::ProofSigner;
use tokio::time::timeout;

use crate::miner_link::MinerOutlet;

/// The pause between two reports.
const EVERY: Duration = Duration::from_secs(10);
/// How long the last report of a session may take.
const LAST_LIMIT: Duration = Duration::from_secs(5);

/// The reports of one session.
pub(crate) struct ProofReports {
    signer: Arc<ProofSigner>,
    /// `None` for a miner that is not Muster.
    miner: Option<MinerOutlet>,
    /// The number of the first proof that was not reported.
    next: u64,
}

impl ProofReports {
    /// Nothing is reported yet.
    pub(crate) fn new(signer: Arc<ProofSigner>, miner: Option<MinerOutlet>) -> Self {
        Self {
            signer,
            miner,
            next: 0,
        }
    }

    /// Reports what is signed. Never ends.
    pub(crate) async fn run(&mut self, clock: &SharedClock) {
        loop {
            clock.sleep(EVERY).await;
            self.report().await;
        }
    }

    /// Reports the rest, once nothing is signed any more.
    pub(crate) async fn finish(&mut self) {
        // The miner is compared with less if it does not take them in time.
        let _ = timeout(LAST_LIMIT, self.report()).await;
    }

    async fn report(&mut self) {
        let Some(miner) = &mut self.miner else { return };
        loop {
            let page = self.signer.proofs(self.next, MAX_SESSION_PROOFS);
            let Some((first, _)) = page.proofs.first() else {
                return;
            };
            let first = *first;
            let proofs: Vec<SignedProof> = page
                .proofs
                .iter()
                .map_while(|(_, text)| signed_proof(text))
                .collect();
            let count = u64::try_from(proofs.len()).unwrap_or(u64::MAX);
            let session = self.signer.session();
            let proofs = ExecutorToMiner::MusterSessionProofs(Box::new(SessionProofs {
                job_uuid: session.attempt,
                session: session.session.to_string(),
                validator: session.audience,
                first,
                proofs,
            }));
            if count == 0 || miner.send(&proofs).await.is_err() {
                return;
            }
            self.next = first.saturating_add(count);
        }
    }
}

/// The facts of a proof that the miner compares; `None` for a text that is no proof.
fn signed_proof(text: &str) -> Option<SignedProof> {
    let envelope = Envelope::<ResponseProof>::from_text(text).ok()?;
    let proof = envelope.statement().ok()?;
    Some(SignedProof {
        digest: envelope.digest(),
        is_answer: proof.client.is_some() && proof.end == StreamEnd::Completed,
        at: proof.to,
    })
}
