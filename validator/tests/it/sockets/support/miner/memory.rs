//! A miner that runs one job on its own and remembers it over reconnections.

use muster_protocol::wire::miner::ToMiner;
use muster_protocol::{AttemptId, ReceiptPayload};

use super::Session;

/// The state of a miner with one job.
#[derive(Debug, Default)]
pub(crate) struct MinerMemory {
    accepted: Option<AttemptId>,
    done: bool,
    /// How often the program was run.
    pub(crate) runs: u32,
}

impl Session {
    /// Handles one message as a miner does that has one executor and keeps its state over reconnections.
    pub(crate) async fn follow(&mut self, message: ToMiner, memory: &mut MinerMemory) {
        match message {
            ToMiner::V0InitialJobRequest(offer) => {
                let id = offer.job_uuid;
                self.countersign(
                    ReceiptPayload::Started(offer.job_started_receipt_payload),
                    offer.job_started_receipt_signature,
                )
                .await;
                memory.accepted = Some(id);
                self.accept_job(id).await;
            }
            ToMiner::V0JobAcceptedReceiptRequest(request) => {
                let id = request.payload.job_uuid;
                self.countersign(ReceiptPayload::Accepted(request.payload), request.signature)
                    .await;
                if !memory.done {
                    self.executor_ready(id).await;
                }
            }
            ToMiner::V0JobRequest(job) => {
                if !memory.done {
                    memory.runs += 1;
                    memory.done = true;
                }
                self.complete(job.job_uuid).await;
            }
            ToMiner::V0JobFinishedReceiptRequest(request) => {
                self.countersign(ReceiptPayload::Finished(request.payload), request.signature)
                    .await;
            }
            // The whitelist belongs to no job.
            ToMiner::MusterWhitelist(_) | ToMiner::MusterFetchImage(_) => {}
            other @ (ToMiner::ValidatorAuthForMiner(_)
            | ToMiner::V0MainHotkeyMessage(_)
            | ToMiner::GenericError(_)
            | ToMiner::MusterCancelJob(_)
            | ToMiner::MusterExecutorEnrolled(_)
            | ToMiner::MusterSessionSealed(_)
            | ToMiner::MusterLeaseHeld(_)
            | ToMiner::MusterEndStored(_)
            | ToMiner::MusterCheckpointKept(_)
            | ToMiner::MusterDrain(_)
            | ToMiner::MusterAudit(_)) => panic!("not expected here: {other:?}"),
        }
    }

    /// Reports its state again, as a miner does when a validator reconnects.
    pub(crate) async fn remind(&mut self, memory: &MinerMemory) {
        match memory.accepted {
            Some(id) if memory.done => self.finished(id).await,
            Some(id) => {
                self.accept_job(id).await;
                self.executor_ready(id).await;
            }
            None => {}
        }
    }
}
