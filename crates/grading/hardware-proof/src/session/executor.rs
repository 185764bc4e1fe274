//! The executor's side of a conversation: accepts a challenge within its limits, requests work, and sends the answers.

use crate::chain::ChainSpec;
use crate::codec::DecodeError;
use crate::keys::SessionId;
use crate::merkle::Hash;
use crate::message::{self, Frame, Kind, Places, Spec, commitment_digest};
use crate::walk::WalkSpec;

/// The largest challenge that this executor accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
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
pub enum Task {
    /// Compute all rounds of a MATMUL.
    Chain(ChainSpec),
    /// Fill the memory of a WALK.
    Fill(WalkSpec),
    /// Run the walks from this seed.
    Walk(WalkSpec, [u8; 32]),
    /// Open the drawn positions.
    Open(Places),
}

/// The result of a [`Task`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Of [`Task::Fill`]: the confirmation of the labels' key.
    Filled([u8; 16]),
    /// Of [`Task::Chain`] and [`Task::Walk`]: the confirmation of the key, and the roots.
    Committed([u8; 16], Vec<Hash>),
    /// Of [`Task::Open`]: the openings, in the order of the draw.
    Opened(Vec<u8>),
}

/// What the caller must do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Do this work and pass its output to [`Executor::output`].
    Run(Task),
    /// Send these bytes now.
    Send(Vec<u8>),
    /// The conversation is over. This is the validator's [`crate::Verdict::code`].
    End(u16),
}

/// The reason why the executor rejects the validator's message. The conversation is over then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The bytes are not a message, or its body is wrong.
    #[error("the validator's message cannot be read")]
    Malformed(#[from] DecodeError),
    /// A message or an output came out of turn.
    #[error("a message or an output came out of turn: the conversation is over")]
    OutOfTurn,
    /// The message belongs to another challenge.
    #[error("the validator's message belongs to another challenge")]
    OtherSession,
    /// The validator draws from another commitment than the executor sent.
    #[error("the validator's draw belongs to another commitment")]
    OtherCommitment,
    /// The challenge exceeds [`Caps`] in this value.
    #[error("the challenge exceeds this executor's limits: {0}")]
    TooMuch(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Waiting,
    Filling(WalkSpec),
    AwaitingSeed(WalkSpec),
    Committing { spec: Spec, seed: [u8; 32] },
    AwaitingDraw { spec: Spec, digest: Hash },
    Opening { digest: Hash },
    AwaitingVerdict,
    Ended,
}

/// The executor's side of one conversation.
#[derive(Debug, Clone)]
pub struct Executor {
    caps: Caps,
    phase: Phase,
    session: SessionId,
}

impl Executor {
    /// A conversation that waits for its challenge.
    pub fn new(caps: Caps) -> Self {
        Self {
            caps,
            phase: Phase::Waiting,
            session: SessionId([0; 32]),
        }
    }

    /// Takes a message from the validator.
    ///
    /// # Errors
    /// The message is rejected. The conversation is over.
    pub fn message(&mut self, bytes: &[u8]) -> Result<Command, Refusal> {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        let frame = Frame::parse(bytes)?;
        if phase != Phase::Waiting && frame.session != self.session {
            return Err(Refusal::OtherSession);
        }
        match (phase, frame.kind) {
            (Phase::Waiting, Kind::Challenge) => self.challenge(&frame),
            (Phase::AwaitingSeed(spec), Kind::Seed) => {
                let seed = *frame.exactly()?;
                self.phase = Phase::Committing {
                    spec: Spec::Walk(spec),
                    seed,
                };
                Ok(Command::Run(Task::Walk(spec, seed)))
            }
            (Phase::AwaitingDraw { spec, digest }, Kind::Draw) => {
                let (committed, entropy) = halves(frame.exactly()?);
                if committed != digest {
                    return Err(Refusal::OtherCommitment);
                }
                self.phase = Phase::Opening { digest };
                Ok(Command::Run(Task::Open(spec.places(&digest, &entropy))))
            }
            // A verdict may come at any time, because a validator that gives up sends one.
            (_, Kind::Verdict) => {
                let [low, high, _, _] = *frame.exactly()?;
                Ok(Command::End(u16::from_le_bytes([low, high])))
            }
            (_, _) => Err(Refusal::OutOfTurn),
        }
    }

    fn challenge(&mut self, frame: &Frame<'_>) -> Result<Command, Refusal> {
        let spec = Spec::from_bytes(frame.body)?;
        if spec.session() != frame.session {
            return Err(Refusal::OtherSession);
        }
        self.session = frame.session;
        match spec {
            Spec::Chain(chain) => {
                if chain.shape().log2_n > self.caps.log2_n {
                    return Err(Refusal::TooMuch("side of the matrices"));
                }
                self.phase = Phase::Committing { spec, seed: [0; 32] };
                Ok(Command::Run(Task::Chain(chain)))
            }
            Spec::Walk(walk) => {
                if walk.bytes() > self.caps.memory_bytes {
                    return Err(Refusal::TooMuch("memory"));
                }
                if walk.shape().work > self.caps.work || walk.bytes_read() > self.caps.read_bytes {
                    return Err(Refusal::TooMuch("work"));
                }
                self.phase = Phase::Filling(walk);
                Ok(Command::Run(Task::Fill(walk)))
            }
        }
    }

    /// Takes the output of a task.
    ///
    /// # Errors
    /// The output is not that of the requested task. The conversation is over.
    pub fn output(&mut self, output: &Output) -> Result<Command, Refusal> {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        match (phase, output) {
            (Phase::Filling(spec), Output::Filled(print)) => {
                self.phase = Phase::AwaitingSeed(spec);
                Ok(self.send(Kind::Filled, &[print]))
            }
            (Phase::Committing { spec, seed }, Output::Committed(print, roots)) => {
                let bytes = message::frame(Kind::Commitment, &self.session, &[print, roots.as_flattened()]);
                self.phase = Phase::AwaitingDraw {
                    spec,
                    digest: commitment_digest(&seed, &bytes),
                };
                Ok(Command::Send(bytes))
            }
            (Phase::Opening { digest }, Output::Opened(opened)) => {
                self.phase = Phase::AwaitingVerdict;
                Ok(self.send(Kind::Opening, &[&digest, opened]))
            }
            (_, Output::Filled(_) | Output::Committed(..) | Output::Opened(_)) => Err(Refusal::OutOfTurn),
        }
    }

    fn send(&self, kind: Kind, parts: &[&[u8]]) -> Command {
        Command::Send(message::frame(kind, &self.session, parts))
    }
}

fn halves(bytes: &[u8; 64]) -> ([u8; 32], [u8; 32]) {
    match bytes.as_chunks::<32>().0 {
        [first, second] => (*first, *second),
        _ => ([0; 32], [0; 32]),
    }
}
