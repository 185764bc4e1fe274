//! The executor's side of a conversation: accepts a challenge within its limits, requests work, and sends the answers.

use crate::challenge_keys::ChallengeId;
use crate::challenge_message::{
    self, DrawnPositions, MessageFrame, MessageKind, ProofSpec, commitment_digest,
};
use crate::codec::DecodeError;
use crate::matmul::MatmulSpec;
use crate::memory_walk::WalkSpec;
use crate::merkle::Hash;

/// The largest challenge that this executor accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProverLimits {
    /// log₂ of the side of a MATMUL's matrices.
    pub log2_n: u8,
    /// The size of a WALK's memory in bytes.
    pub memory_bytes: u64,
    /// Applications of the one-way function per word of memory.
    pub work: u32,
    /// Bytes that all steps of a WALK together read.
    pub read_bytes: u128,
}

/// Work for a [`crate::prover::Prover`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProverTask {
    /// Compute all rounds of a MATMUL.
    Matmul(MatmulSpec),
    /// Fill the memory of a WALK.
    Fill(WalkSpec),
    /// Run the walks from this seed.
    Walk(WalkSpec, [u8; 32]),
    /// Open the drawn positions.
    Open(DrawnPositions),
}

/// The result of a [`ProverTask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProverOutput {
    /// Of [`ProverTask::Fill`]: the confirmation of the labels' key.
    Filled([u8; 16]),
    /// Of [`ProverTask::Matmul`] and [`ProverTask::Walk`]: the confirmation of the key, and the roots.
    Committed([u8; 16], Vec<Hash>),
    /// Of [`ProverTask::Open`]: the openings, in the order of the draw.
    Opened(Vec<u8>),
}

/// The next action of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutorCommand {
    /// Do this work and pass its output to [`ExecutorConversation::complete_task`].
    Run(ProverTask),
    /// Send these bytes now.
    Send(Vec<u8>),
    /// The conversation is over. This is the validator's [`crate::ProofVerdict::code`].
    End(u16),
}

/// The reason why the executor rejects the validator's message. The conversation is over then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChallengeRejection {
    /// The bytes are not a message, or its body is wrong.
    #[error("the validator's message cannot be read")]
    Malformed(#[from] DecodeError),
    /// A message or an output came out of turn.
    #[error("a message or an output came out of turn: the conversation is over")]
    OutOfTurn,
    /// The message belongs to another challenge.
    #[error("the validator's message belongs to another challenge")]
    OtherChallenge,
    /// The validator draws from another commitment than the executor sent.
    #[error("the validator's draw belongs to another commitment")]
    OtherCommitment,
    /// The challenge exceeds [`ProverLimits`] in this value.
    #[error("the challenge exceeds this executor's limits: {0}")]
    TooMuch(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ExecutorPhase {
    AwaitingChallenge,
    Filling(WalkSpec),
    AwaitingSeed(WalkSpec),
    Committing { spec: ProofSpec, seed: [u8; 32] },
    AwaitingDraw { spec: ProofSpec, digest: Hash },
    Opening { digest: Hash },
    AwaitingVerdict,
    Ended,
}

/// The executor's side of one conversation.
#[derive(Debug, Clone)]
pub struct ExecutorConversation {
    caps: ProverLimits,
    phase: ExecutorPhase,
    challenge_id: ChallengeId,
}

impl ExecutorConversation {
    /// A conversation that waits for its challenge.
    pub fn new(caps: ProverLimits) -> Self {
        Self {
            caps,
            phase: ExecutorPhase::AwaitingChallenge,
            challenge_id: ChallengeId([0; 32]),
        }
    }

    /// Takes a message from the validator.
    ///
    /// # Errors
    /// The message is rejected. The conversation is over.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<ExecutorCommand, ChallengeRejection> {
        let phase = std::mem::replace(&mut self.phase, ExecutorPhase::Ended);
        let frame = MessageFrame::parse(bytes)?;
        if phase != ExecutorPhase::AwaitingChallenge && frame.challenge_id != self.challenge_id {
            return Err(ChallengeRejection::OtherChallenge);
        }
        match (phase, frame.kind) {
            (ExecutorPhase::AwaitingChallenge, MessageKind::Challenge) => self.accept_challenge(&frame),
            (ExecutorPhase::AwaitingSeed(spec), MessageKind::Seed) => {
                let seed = *frame.exactly()?;
                self.phase = ExecutorPhase::Committing {
                    spec: ProofSpec::Walk(spec),
                    seed,
                };
                Ok(ExecutorCommand::Run(ProverTask::Walk(spec, seed)))
            }
            (ExecutorPhase::AwaitingDraw { spec, digest }, MessageKind::Draw) => {
                let (committed, entropy) = split_halves(frame.exactly()?);
                if committed != digest {
                    return Err(ChallengeRejection::OtherCommitment);
                }
                self.phase = ExecutorPhase::Opening { digest };
                Ok(ExecutorCommand::Run(ProverTask::Open(
                    spec.draw_positions(&digest, &entropy),
                )))
            }
            // A verdict may come at any time, because a validator that gives up sends one.
            (_, MessageKind::Verdict) => {
                let [low, high, _, _] = *frame.exactly()?;
                Ok(ExecutorCommand::End(u16::from_le_bytes([low, high])))
            }
            (_, _) => Err(ChallengeRejection::OutOfTurn),
        }
    }

    fn accept_challenge(&mut self, frame: &MessageFrame<'_>) -> Result<ExecutorCommand, ChallengeRejection> {
        let spec = ProofSpec::from_bytes(frame.body)?;
        if spec.challenge_id() != frame.challenge_id {
            return Err(ChallengeRejection::OtherChallenge);
        }
        self.challenge_id = frame.challenge_id;
        match spec {
            ProofSpec::Matmul(chain) => {
                if chain.shape().log2_n > self.caps.log2_n {
                    return Err(ChallengeRejection::TooMuch("side of the matrices"));
                }
                self.phase = ExecutorPhase::Committing { spec, seed: [0; 32] };
                Ok(ExecutorCommand::Run(ProverTask::Matmul(chain)))
            }
            ProofSpec::Walk(walk) => {
                if walk.bytes() > self.caps.memory_bytes {
                    return Err(ChallengeRejection::TooMuch("memory"));
                }
                if walk.shape().work > self.caps.work || walk.bytes_read() > self.caps.read_bytes {
                    return Err(ChallengeRejection::TooMuch("work"));
                }
                self.phase = ExecutorPhase::Filling(walk);
                Ok(ExecutorCommand::Run(ProverTask::Fill(walk)))
            }
        }
    }

    /// Takes the output of a task.
    ///
    /// # Errors
    /// The output is not that of the requested task. The conversation is over.
    pub fn complete_task(&mut self, output: &ProverOutput) -> Result<ExecutorCommand, ChallengeRejection> {
        let phase = std::mem::replace(&mut self.phase, ExecutorPhase::Ended);
        match (phase, output) {
            (ExecutorPhase::Filling(spec), ProverOutput::Filled(print)) => {
                self.phase = ExecutorPhase::AwaitingSeed(spec);
                Ok(self.send(MessageKind::Filled, &[print]))
            }
            (ExecutorPhase::Committing { spec, seed }, ProverOutput::Committed(print, roots)) => {
                let bytes = challenge_message::encode_message(
                    MessageKind::Commitment,
                    &self.challenge_id,
                    &[print, roots.as_flattened()],
                );
                self.phase = ExecutorPhase::AwaitingDraw {
                    spec,
                    digest: commitment_digest(&seed, &bytes),
                };
                Ok(ExecutorCommand::Send(bytes))
            }
            (ExecutorPhase::Opening { digest }, ProverOutput::Opened(opened)) => {
                self.phase = ExecutorPhase::AwaitingVerdict;
                Ok(self.send(MessageKind::Opening, &[&digest, opened]))
            }
            (_, ProverOutput::Filled(_) | ProverOutput::Committed(..) | ProverOutput::Opened(_)) => {
                Err(ChallengeRejection::OutOfTurn)
            }
        }
    }

    fn send(&self, kind: MessageKind, parts: &[&[u8]]) -> ExecutorCommand {
        ExecutorCommand::Send(challenge_message::encode_message(kind, &self.challenge_id, parts))
    }
}

fn split_halves(bytes: &[u8; 64]) -> ([u8; 32], [u8; 32]) {
    match bytes.as_chunks::<32>().0 {
        [first, second] => (*first, *second),
        _ => ([0; 32], [0; 32]),
    }
}
