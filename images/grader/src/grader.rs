//! One conversation at a time with a validator, on one prover.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use muster_hardware_proof::message::{Frame, Kind};
use muster_hardware_proof::prover::{Prover, ProverError, Watch, perform};
use muster_hardware_proof::session::{Caps, Command, Executor, Refusal};

/// What a message is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A message for the validator.
    Message(Vec<u8>),
    /// Nothing: the validator has judged. The code of [`muster_hardware_proof::Verdict`].
    Judged(u16),
}

/// Why a message is not answered.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The validator's message has no place here.
    #[error(transparent)]
    Conversation(#[from] Refusal),
    /// The machine could not do it.
    #[error(transparent)]
    Prover(#[from] ProverError),
    /// It works on another message.
    #[error("the prover is at work on another message: one conversation at a time")]
    Busy,
}

/// The prover and the conversation that it is in. A challenge begins a new one, whatever came of the one before.
pub struct Grader<P> {
    caps: Caps,
    state: Mutex<State<P>>,
}

struct State<P> {
    executor: Executor,
    prover: P,
}

/// Set by whoever no longer waits for the answer.
struct CalledOff<'a>(&'a AtomicBool);

impl Watch for CalledOff<'_> {
    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<P: Prover> Grader<P> {
    /// Waits for a challenge within `caps`.
    pub fn new(prover: P, caps: Caps) -> Self {
        let executor = Executor::new(caps);
        Self {
            caps,
            state: Mutex::new(State { executor, prover }),
        }
    }

    /// Answers one message; blocks for as long as the work takes, or until `called_off`.
    ///
    /// # Errors
    /// The message is refused, or the machine cannot do what it asks. The conversation is over then, unless the prover was only
    /// busy with another message.
    pub fn answer(&self, message: &[u8], called_off: &AtomicBool) -> Result<Answer, Refused> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            // What a panic left is a conversation that is over, and a prover that begins each task anew.
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return Err(Refused::Busy),
        };
        let State { executor, prover } = &mut *state;
        if Frame::parse(message).is_ok_and(|frame| frame.kind == Kind::Challenge) {
            *executor = Executor::new(self.caps);
        }
        let outcome = converse(executor, prover, message, called_off);
        if outcome.is_err() {
            *executor = Executor::new(self.caps);
        }
        outcome
    }
}

fn converse(
    executor: &mut Executor,
    prover: &mut dyn Prover,
    message: &[u8],
    called_off: &AtomicBool,
) -> Result<Answer, Refused> {
    let mut command = executor.message(message)?;
    loop {
        match command {
            Command::Run(task) => {
                let output = perform(prover, &task, &CalledOff(called_off))?;
                command = executor.output(&output)?;
            }
            Command::Send(bytes) => return Ok(Answer::Message(bytes)),
            Command::End(code) => return Ok(Answer::Judged(code)),
        }
    }
}
