//! The phases of an audit, from the end of a bucket to the release of the last machine.
//!
//! A validator may be killed in any of them. The tests kill it in each phase of [`AuditPhase::ALL`], so a phase that is
//! added here is killed in, too, and one that no audit enters fails them.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

/// Declares the phases with their names, so that no phase is missing in the list.
macro_rules! phases {
    ($($(#[$doc:meta])* $phase:ident = $name:literal,)*) => {
        /// A phase of an audit. It is entered before what it names is done.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum AuditPhase {
            $($(#[$doc])* $phase,)*
        }

        impl AuditPhase {
            /// All phases, in the order in which an audit and the appeal against it enter them.
            pub const ALL: &[Self] = &[$(Self::$phase,)*];

            /// The name in logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$phase => $name,)*
                }
            }
        }
    };
}

phases! {
    /// The answers of a bucket have their places, and its header is signed and stored.
    ClosingBucket = "closing a bucket",
    /// The answers of a closed bucket are drawn, and the words of the others are shredded.
    Drawing = "drawing from a bucket",
    /// The answers that wait are looked through, and the audit is stored as begun.
    Gathering = "gathering",
    /// The own miner is asked for a machine.
    AskingForMachine = "asking for a machine",
    /// The machine comes up and starts the reference.
    StartingReference = "starting a reference",
    /// The reference writes an answer and scores it.
    TestingReference = "testing a reference",
    /// The first reference scores an answer.
    Scoring = "scoring",
    /// The second reference scores an answer.
    Confirming = "confirming",
    /// The bundle is assembled from what is stored.
    AssemblingBundle = "assembling the bundle",
    /// Bundle and verdict are stored together; from then on the verdict counts.
    StoringVerdict = "storing the verdict",
    /// The verdict counts, and the outcomes that it rests on are revealed.
    RevealingOutcomes = "revealing outcomes",
    /// The audit is stored as judged.
    EndingAudit = "ending the audit",
    /// The sessions of the references are ended, with them their machines.
    ReleasingMachines = "releasing the machines",
    /// The own prompts of an appeal are sent to the miner that appeals.
    AskingFreshAnswers = "asking for fresh answers",
    /// The end of an appeal is stored.
    EndingAppeal = "ending an appeal",
}

type Observer = dyn Fn(AuditPhase) -> BoxFuture<'static, ()> + Send + Sync;

/// Observes the phases of a validator's audits. An audit goes on once the observer has; the default observes nothing.
#[derive(Clone, Default)]
pub struct PhaseObserver(Option<Arc<Observer>>);

impl PhaseObserver {
    /// Calls `observe` at every phase.
    pub fn new(observe: impl Fn(AuditPhase) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observe)))
    }

    /// A phase begins.
    pub(crate) async fn enter(&self, phase: AuditPhase) {
        tracing::trace!(phase = phase.name(), "a phase of an audit begins");
        if let Some(observe) = &self.0 {
            observe(phase).await;
        }
    }
}

impl fmt::Debug for PhaseObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "PhaseObserver"
        } else {
            "no observer"
        })
    }
}

/// Two configurations are the same if both observe or neither does.
impl PartialEq for PhaseObserver {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_some() == other.0.is_some()
    }
}

impl Eq for PhaseObserver {}
