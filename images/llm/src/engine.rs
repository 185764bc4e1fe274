//! The engine: one thread that owns the model and goes on with every text a little, again and again.
//!
//! Requests come in over a bounded channel and tokens leave over one bounded channel each. A reader that is slow is
//! left out of a round; one that has gone is dropped, and its slot stays as a prefix for whoever begins alike.

mod fold;
mod run;
mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

use tokio::sync::{mpsc, oneshot};

pub use fold::Likely;

use crate::backend::Backend;
use crate::replay::Chooser;
use crate::sampler::{Parameters, Slack};

/// Events that wait for a reader before its text is left out of rounds.
const EVENTS: usize = 32;

/// How much the engine takes on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Texts that are worked on at once.
    pub streams: usize,
    /// Requests that wait for a slot.
    pub waiting: usize,
    /// Tokens of prompts taken into one round, so that those who wait for a next token do not wait for a long prompt.
    pub prefill: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 32,
            waiting: 256,
            prefill: 512,
        }
    }
}

/// A text to go on with.
#[derive(Clone, Debug)]
pub struct Generate {
    /// Its tokens so far; at least one, and fewer than the context.
    pub prompt: Vec<u32>,
    /// How the next ones are chosen.
    pub parameters: Parameters,
    /// The sampler and the seed of this choice.
    pub chooser: Chooser,
    /// At most this many; at least one.
    pub max_tokens: usize,
    /// How many likely tokens are reported beside each chosen one; none: no log-probabilities at all.
    pub likely: Option<usize>,
}

/// A text to be scored by teacher forcing.
#[derive(Clone, Debug)]
pub struct Score {
    /// Prompt and answer; at most the context.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt; at least one.
    pub prompt: usize,
    /// How the answer's tokens are claimed to have been chosen.
    pub parameters: Parameters,
    /// The sampler and the seed of this choice; none: no margins.
    pub chooser: Option<Chooser>,
    /// How far off a replay may be.
    pub slack: Slack,
    /// How many likely tokens are reported beside each.
    pub likely: usize,
}

/// An event in the life of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It has a slot; this many of its prompt's tokens were at hand already.
    Began(usize),
    /// The next token.
    Token(Token),
    /// There are no more.
    Finished(Finish),
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The id of the token.
    pub id: u32,
    /// Natural logarithm of its probability before penalties, bias and temperature; with `likely` only.
    pub logprob: Option<f64>,
    /// The likeliest at this position, likeliest first.
    pub likely: Vec<Likely>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended the answer; the token that does it was the last event.
    End,
    /// Nothing more was asked for, or the context is full.
    Length,
    /// The model or the tensor library failed.
    Failed,
}

/// The score of one token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The id of the token.
    pub id: u32,
    /// Natural logarithm of its probability before penalties, bias and temperature.
    pub logprob: f64,
    /// In nats, of that distribution.
    pub entropy: f64,
    /// In Q24: how far it is behind what the sampler would have chosen.
    pub margin: Margin,
    /// The likeliest at this position, likeliest first.
    pub likely: Vec<Likely>,
}

/// The sampler's margin of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Margin {
    /// There was no seed.
    Unknown,
    /// The margin in Q24.
    Known(i64),
    /// The sampler cannot have chosen it.
    Impossible,
}

/// The scores of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// One for each of its tokens.
    pub tokens: Vec<Scored>,
    /// The scores that the tokens that end a text would have had after the last one; empty where the context is full.
    pub ends: Vec<Scored>,
    /// Tokens whose keys and values were at hand already.
    pub cached: usize,
}

/// Why the engine did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many as may wait do.
    #[error("the engine is full; try again in a moment")]
    Full,
    /// It has stopped.
    #[error("the engine has stopped; its log says why")]
    Stopped,
}

enum Command {
    Generate(Generate, mpsc::Sender<Event>),
    Score(Score, oneshot::Sender<Scores>),
}

/// How requests reach the engine.
#[derive(Clone)]
pub struct Engine {
    commands: SyncSender<Command>,
    open: Arc<AtomicUsize>,
    limit: usize,
}

/// Counts a request for as long as it is open.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Engine {
    /// Starts the engine's thread. It ends when the last handle is dropped and every text is finished.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(backend: Box<dyn Backend>, limits: Limits) -> std::io::Result<Self> {
        let (commands, inbox) = sync_channel(limits.waiting.max(1));
        let open = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&open);
        std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || run::Run::new(backend, limits, inbox, counter).run())?;
        Ok(Self {
            commands,
            open,
            limit: limits.waiting + limits.streams,
        })
    }

    /// Goes on with a text. Dropping the receiver cancels it.
    ///
    /// # Errors
    /// The engine is full or has stopped.
    pub fn generate(&self, request: Generate) -> Result<mpsc::Receiver<Event>, Refused> {
        let (sender, receiver) = mpsc::channel(EVENTS);
        self.send(Command::Generate(request, sender))?;
        Ok(receiver)
    }

    /// Scores a text. Dropping the receiver cancels it.
    ///
    /// # Errors
    /// The engine is full or has stopped.
    pub fn score(&self, request: Score) -> Result<oneshot::Receiver<Scores>, Refused> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Score(request, sender))?;
        Ok(receiver)
    }

    /// Requests that are worked on or wait.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn send(&self, command: Command) -> Result<(), Refused> {
        if self.open.fetch_add(1, Ordering::AcqRel) >= self.limit {
            self.open.fetch_sub(1, Ordering::AcqRel);
            return Err(Refused::Full);
        }
        self.commands.try_send(command).map_err(|error| {
            self.open.fetch_sub(1, Ordering::AcqRel);
            match error {
                TrySendError::Full(_) => Refused::Full,
                TrySendError::Disconnected(_) => Refused::Stopped,
            }
        })
    }
}
