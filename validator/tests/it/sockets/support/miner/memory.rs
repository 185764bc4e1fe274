//! A miner that runs one job on its own and remembers it over reconnections.

use muster_protocol::wire::validator_socket::ValidatorToMiner;
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
    pub(crate) async fn follow(&mut self, message: ValidatorToMiner, memory: &mut MinerMemory) {
        match message {
            ValidatorToMiner::V0InitialJobRequest(offer) => {
                let id = offer.job_uuid;
                self.countersign(
                    ReceiptPayload::Started(offer.job_started_receipt_payload),
                    offer.job_started_receipt_signature,
                )
                .await;
                memory.accepted = Some(id);
                self.accept_job(id).await;
            }
            ValidatorToMiner::V0JobAcceptedReceiptRequest(request) => {
                let id = request.payload.job_uuid;
                self.countersign(ReceiptPayload::Accepted(request.payload), request.signature)
                    .await;
                if !memory.done {
                    self.executor_ready(id).await;
                }
            }
            ValidatorToMiner::V0JobRequest(job) => {
                if !memory.done {
                    memory.runs += 1;
                    memory.done = true;
                }
                self.complete(job.job_uuid).await;
            }
            ValidatorToMiner::V0JobFinishedReceiptRequest(request) => {
                self.countersign(ReceiptPayload::Finished(request.payload), request.signature)
                    .await;
            }
            // The whitelist belongs to no job.
            ValidatorToMiner::MusterWhitelist(_) => {}
            other @ (ValidatorToMiner::ValidatorAuthForMiner(_)
            | ValidatorToMiner::V0MainHotkeyMessage(_)
            | ValidatorToMiner::GenericError(_)
            | ValidatorToMiner::MusterCancelJob(_)
            | ValidatorToMiner::MusterCheckpointKept(_)
            | ValidatorToMiner::MusterDrain(_)
            | ValidatorToMiner::MusterAudit(_)) => panic!("not expected here: {other:?}"),
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
