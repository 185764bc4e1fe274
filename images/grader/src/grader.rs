//! Holds one conversation at a time with a validator, on one prover.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use muster_hardware_proof::challenge_message::{MessageFrame, MessageKind};
use muster_hardware_proof::conversation::{
    ChallengeRejection, ExecutorCommand, ExecutorConversation, ProverLimits,
};
use muster_hardware_proof::prover::{Prover, ProverError, WorkObserver, perform_task};

/// The reply to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GraderReply {
    /// A message for the validator.
    Message(Vec<u8>),
    /// No message, because the validator has judged. The number is [`muster_hardware_proof::ProofVerdict::code`].
    Judged(u16),
}

/// The reason why a message is rejected.
#[derive(Debug, thiserror::Error)]
pub enum GraderRejection {
    /// The conversation rejects the message.
    #[error(transparent)]
    Conversation(#[from] ChallengeRejection),
    /// The prover failed.
    #[error(transparent)]
    Prover(#[from] ProverError),
    /// The prover works on another message.
    #[error("the prover is busy with another message: one conversation at a time")]
    Busy,
}

/// A prover and its present conversation. A challenge begins a new conversation, even if the one before has not ended.
pub struct GraderService<P> {
    caps: ProverLimits,
    state: Mutex<GraderState<P>>,
}

struct GraderState<P> {
    executor: ExecutorConversation,
    prover: P,
}

/// Cancels the work when nobody waits for its answer any longer.
struct CancelFlag<'a>(&'a AtomicBool);

impl WorkObserver for CancelFlag<'_> {
    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<P: Prover> GraderService<P> {
    /// A service that waits for a challenge within `caps`.
    pub fn new(prover: P, caps: ProverLimits) -> Self {
        let executor = ExecutorConversation::new(caps);
        Self {
            caps,
            state: Mutex::new(GraderState { executor, prover }),
        }
    }

    /// Handles one message. Blocks until the work is done, or until `called_off` is set.
    ///
    /// # Errors
    /// The message is rejected, or the prover fails. The conversation is over then, unless the prover was only busy
    /// with another message.
    pub fn handle_message(
        &self,
        message: &[u8],
        called_off: &AtomicBool,
    ) -> Result<GraderReply, GraderRejection> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            // After a panic, the conversation is over and the prover begins each task anew, so the state can be used.
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return Err(GraderRejection::Busy),
        };
        let GraderState { executor, prover } = &mut *state;
        if MessageFrame::parse(message).is_ok_and(|frame| frame.kind == MessageKind::Challenge) {
            *executor = ExecutorConversation::new(self.caps);
        }
        let outcome = converse(executor, prover, message, called_off);
        if outcome.is_err() {
            *executor = ExecutorConversation::new(self.caps);
        }
        outcome
    }
}

fn converse(
    executor: &mut ExecutorConversation,
    prover: &mut dyn Prover,
    message: &[u8],
    called_off: &AtomicBool,
) -> Result<GraderReply, GraderRejection> {
    let mut command = executor.receive(message)?;
    loop {
        match command {
            ExecutorCommand::Run(task) => {
                let output = perform_task(prover, &task, &CancelFlag(called_off))?;
                command = executor.complete_task(&output)?;
            }
            ExecutorCommand::Send(bytes) => return Ok(GraderReply::Message(bytes)),
            ExecutorCommand::End(code) => return Ok(GraderReply::Judged(code)),
        }
    }
}
