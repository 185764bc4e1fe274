//! The tensor libraries behind one trait, so that a second library can be compared with the first.

mod candle;
mod kernels;
mod products;
#[cfg(feature = "torch")]
mod torch;

use crate::model::Shape;

pub use candle::Candle;
pub(crate) use kernels::exp;
#[cfg(feature = "torch")]
pub use torch::Torch;

/// Which of a job's logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// None: there is more of the text to come.
    Nothing,
    /// Those after its last token.
    Last,
    /// Those after each of its tokens.
    All,
}

/// Tokens that go on from what a slot holds.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The slot of the text.
    pub slot: usize,
    /// The next tokens of the text; at least one.
    pub tokens: &'a [u32],
    /// The results to return.
    pub want: Want,
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// As they come.
    F32,
    /// Rounded to eight bits with one scale for each head at each position: what a cheaper engine would keep.
    Int8,
}

/// The precision to which numbers between products are rounded; sums are always in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Not at all.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16, as engines on GPUs usually have it.
    Bf16,
}

/// A backend failed. Its own fault, never the peer's: what peers send is checked before.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The tensor library refused.
    #[error("the tensor library failed")]
    Candle(#[from] candle_core::Error),
    /// libtorch reported an error.
    #[cfg(feature = "torch")]
    #[error("libtorch failed")]
    Torch(#[from] tch::TchError),
    /// There is no device that libtorch can use.
    #[cfg(feature = "torch")]
    #[error(
        "libtorch finds no CUDA device ({0}); use the backend torch, or a libtorch and a driver that go together"
    )]
    NoDevice(String),
    /// Weights could not be taken over.
    #[error("weights could not be taken over")]
    Model(#[from] crate::model::ModelError),
    /// Weights that are not where they were put.
    #[error("the weights are on another device")]
    Device,
    /// A job that no caller may make.
    #[error("a job names no slot, a token outside the vocabulary, or goes beyond the context")]
    Job,
}

/// A model that can be run, with the keys and values of a number of texts.
pub trait Backend: Send {
    /// The model's size.
    fn shape(&self) -> &Shape;

    /// How many texts it can hold.
    fn slots(&self) -> usize;

    /// Keeps only the first `length` tokens of a slot.
    fn truncate(&mut self, slot: usize, length: usize);

    /// Makes slot `to` begin with the first `length` tokens of slot `from`, another one.
    ///
    /// # Errors
    /// No such slots, or the library's own failure; what `to` then holds means nothing.
    fn copy(&mut self, from: usize, to: usize, length: usize) -> Result<(), BackendError>;

    /// Goes on with several texts at once, at most one job a slot. Gives rows of `vocabulary` logits for each job, as
    /// many as it wants, one after the other.
    ///
    /// # Errors
    /// A job that cannot be, or the library's own failure.
    fn forward(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Vec<f32>>, BackendError>;
}

/// The first position of each job, where slots are so long, if the jobs can be done.
fn starts(
    shape: &Shape,
    jobs: &[Job<'_>],
    length: impl Fn(usize) -> Option<usize>,
) -> Result<Vec<usize>, BackendError> {
    let start = |job: &Job<'_>| {
        let start = length(job.slot)?;
        let known = job
            .tokens
            .iter()
            .all(|token| (*token as usize) < shape.vocabulary);
        let fits = start + job.tokens.len() <= shape.context;
        (known && fits && !job.tokens.is_empty()).then_some(start)
    };
    jobs.iter()
        .map(|job| start(job).ok_or(BackendError::Job))
        .collect()
}
