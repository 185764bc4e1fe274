//! The conversation with one executor about one challenge, timed by the monotonic clock of this machine.
//!
//! The clock starts with the first byte on the socket and stops with the last byte of the commitment. Replies are read
//! up to the largest valid length, so an executor cannot exhaust the memory or keep the validator reading.

use std::time::Duration;

use bytes::Bytes;
use muster_hardware_proof::conversation::{ValidatorAction, ValidatorConversation, ValidatorInput};
use tokio::time::{Instant, timeout_at};

use crate::runner_state::micros;
use crate::transport::{Transport, TransportReply};

/// Added to the timer of a time limit, so that the state machine and not the timer decides what was late.
const SLACK: Duration = Duration::from_millis(500);
/// A conversation that is driven in two steps: up to the commitment, and from the draw to the end.
#[derive(Debug)]
pub struct TimedConversation {
    machine: ValidatorConversation,
    origin: Instant,
    /// The time at which the first byte of the challenge was sent.
    pub sent_at: Instant,
    /// Whether the conversation ended before a commitment, so that nothing is drawn.
    is_over: bool,
    /// A failure that is not a message, as text.
    pub trouble: Option<String>,
    /// The session's signed response proofs, in order.
    pub seals: Vec<String>,
    /// The longest wait for a reply, if it is shorter than the conversation's own limit.
    patience: Option<Duration>,
    /// Whether a reply did not come in time.
    is_late: bool,
}

impl TimedConversation {
    /// A conversation that has not begun. Its first message is ready.
    pub fn new(machine: ValidatorConversation) -> Self {
        let now = Instant::now();
        Self {
            machine,
            origin: now,
            sent_at: now,
            is_over: false,
            trouble: None,
            seals: Vec::new(),
            patience: None,
            is_late: false,
        }
    }

    /// Sends the challenge and goes on until the executor has committed, which stops its clock.
    pub async fn run_to_commitment(&mut self, line: &dyn Transport) {
        self.origin = Instant::now();
        self.sent_at = self.origin;
        let challenge = Bytes::copy_from_slice(self.machine.challenge());
        let commitment = muster_hardware_proof::challenge_message::MessageKind::Commitment as u8;
        let mut message = self.exchange(line, challenge, true).await;
        while let Some((kind, bytes)) = message {
            if kind == commitment {
                return;
            }
            // The memory is full. The seed is drawn now, not earlier.
            drop(bytes);
            message = match self.draw_randomness() {
                Some(seed) => self.exchange(line, seed, false).await,
                None => None,
            };
        }
        self.is_over = true;
    }

    /// Draws and takes the opening, which is waited for no longer than `patience`, if that is given. Returns the
    /// evidence and the remarks.
    pub async fn take_opening(
        mut self,
        line: &dyn Transport,
        patience: Option<Duration>,
    ) -> (muster_hardware_proof::Evidence, ConversationRemarks) {
        self.patience = patience;
        if !self.is_over
            && let Some(draw) = self.draw_randomness()
        {
            self.exchange(line, draw, false).await;
        }
        let rest = ConversationRemarks {
            trouble: self.trouble,
            seals: self.seals,
            is_late: self.is_late,
        };
        (self.machine.into_evidence(), rest)
    }

    /// Draws randomness and encodes the message that carries it.
    fn draw_randomness(&mut self) -> Option<Bytes> {
        let mut random = [0; 32];
        if getrandom::fill(&mut random).is_err() {
            self.trouble = Some("this machine has no randomness".to_owned());
            return None;
        }
        match self.machine.apply(
            ValidatorInput::Randomness(random),
            self.elapsed_us(Instant::now()),
        ) {
            Some(ValidatorAction::Send(bytes)) => Some(Bytes::from(bytes)),
            Some(ValidatorAction::NeedRandomness | ValidatorAction::End) | None => None,
        }
    }

    /// Sends one message and takes the reply. Returns the kind and the bytes of the reply if the conversation goes on.
    async fn exchange(&mut self, line: &dyn Transport, message: Bytes, first: bool) -> Option<(u8, Vec<u8>)> {
        let asked = Instant::now();
        let own_limit = self.reply_limit(first);
        let limit = self
            .patience
            .map_or(own_limit, |patience| own_limit.min(patience));
        let mut sent = None;
        let said = {
            let (machine, origin, place) = (&mut self.machine, self.origin, &mut sent);
            let begun = Box::new(move |at: Instant| {
                *place = Some(at);
                if first {
                    machine.apply(
                        ValidatorInput::Started,
                        micros(at.saturating_duration_since(origin)),
                    );
                }
                machine.max_message_bytes()
            });
            timeout_at(asked + limit + SLACK, line.send(message, begun)).await
        };
        if first {
            self.sent_at = sent.unwrap_or(asked);
            if sent.is_none() {
                // The time limit passed before the first byte was sent.
                self.machine
                    .apply(ValidatorInput::Started, self.elapsed_us(asked));
            }
        }
        let (input, at) = match &said {
            Ok(TransportReply::Message(bytes, at, seal)) => {
                self.seals.extend(seal.clone());
                (ValidatorInput::Message(bytes), *at)
            }
            Ok(TransportReply::Oversized(length)) => (ValidatorInput::Oversized(*length), Instant::now()),
            Ok(TransportReply::Failed(words)) => {
                self.trouble = Some(muster_grading::judgement::sanitize_words(words));
                (ValidatorInput::Gone, Instant::now())
            }
            Err(_) if limit < own_limit => {
                self.is_late = true;
                self.trouble = Some(format!(
                    "other openings of its miner did not come, so this one was waited for {} s",
                    limit.as_secs()
                ));
                (ValidatorInput::Gone, Instant::now())
            }
            Err(_) => {
                self.is_late = true;
                (ValidatorInput::Tick, Instant::now())
            }
        };
        match (self.machine.apply(input, self.elapsed_us(at)), said) {
            (Some(ValidatorAction::NeedRandomness), Ok(TransportReply::Message(bytes, _, _))) => {
                Some((bytes.get(1).copied().unwrap_or_default(), bytes))
            }
            (_, _) => None,
        }
    }

    /// The time limit for the reply to the next message.
    fn reply_limit(&self, first: bool) -> Duration {
        let limits = self.machine.limits();
        let us = match (first, self.machine.deadline_us()) {
            // The conversation has not begun: the limit of its first phase.
            (true, _) | (false, None) => limits.fill_us.max(limits.commit_us),
            (false, Some(deadline)) => deadline.saturating_sub(self.elapsed_us(Instant::now())),
        };
        Duration::from_micros(us)
    }

    fn elapsed_us(&self, instant: Instant) -> u64 {
        micros(instant.saturating_duration_since(self.origin))
    }
}

/// Remarks on a conversation that are not part of its evidence.
#[derive(Debug)]
pub struct ConversationRemarks {
    /// A failure that is not a message, as text.
    pub trouble: Option<String>,
    /// The session's signed response proofs, in order.
    pub seals: Vec<String>,
    /// Whether a reply did not come in time.
    pub is_late: bool,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Mutex;

    use futures_util::future::BoxFuture;
    use muster_grading::batch_plan::Participant;
    use muster_grading::grade_spec::{GradeSpec, Trial};
    use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce};
    use muster_hardware_proof::conversation::{ExecutorCommand, ExecutorConversation, ProverLimits};
    use muster_hardware_proof::prover::{CpuProver, NoObserver, perform_task};
    use muster_hardware_proof::{InstructionSet, ProofVerdict, ZeroReason};
    use muster_protocol::{ExecutorClass, Hotkey, MinerKey};

    use super::*;

    /// An executor at the other end that behaves in some way.
    struct Fake {
        does: Does,
        state: Mutex<(ExecutorConversation, CpuProver)>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Does {
        Honest,
        Silent,
        Floods,
        Refuses,
        LeavesAfter,
    }

    impl Fake {
        fn new(does: Does) -> Self {
            let caps = ProverLimits {
                log2_n: 10,
                memory_bytes: 1 << 22,
                work: 64,
                read_bytes: 1 << 34,
            };
            let prover = CpuProver::new(InstructionSet::best(), NonZeroUsize::MIN);
            Self {
                does,
                state: Mutex::new((ExecutorConversation::new(caps), prover)),
            }
        }

        fn answer(&self, message: &[u8]) -> Vec<u8> {
            let mut state = self.state.lock().unwrap();
            let (executor, prover) = &mut *state;
            let ExecutorCommand::Run(task) = executor.receive(message).unwrap() else {
                panic!("no work")
            };
            let output = perform_task(prover, &task, &NoObserver).unwrap();
            let ExecutorCommand::Send(bytes) = executor.complete_task(&output).unwrap() else {
                panic!("no message")
            };
            bytes
        }
    }

    impl Transport for Fake {
        fn send<'a>(
            &'a self,
            message: Bytes,
            begun: Box<dyn FnOnce(Instant) -> usize + Send + 'a>,
        ) -> BoxFuture<'a, TransportReply> {
            Box::pin(async move {
                let most = begun(Instant::now());
                match self.does {
                    Does::Silent => std::future::pending().await,
                    Does::Floods => TransportReply::Oversized(u64::try_from(most).unwrap() + 1),
                    Does::Refuses => {
                        TransportReply::Failed("its program answered 507: no\u{7} room".to_owned())
                    }
                    Does::LeavesAfter if message[1] == 5 => TransportReply::Failed("reset".to_owned()),
                    Does::Honest | Does::LeavesAfter => {
                        let bytes = self.answer(&message);
                        assert_eq!(bytes.len(), most, "the whole valid message is read and no more");
                        TransportReply::Message(bytes, Instant::now(), Some("seal".to_owned()))
                    }
                }
            })
        }
    }

    /// The proof of a memory, and products that are bound to none.
    fn both_kinds() -> [Trial; 2] {
        let grade_spec = GradeSpec::for_class(ExecutorClass::AlwaysOnTest).unwrap();
        [grade_spec.trials[0], grade_spec.for_session().trials[0]]
    }

    async fn verdict(does: Does, asked: Trial) -> (ProofVerdict, ConversationRemarks, Duration) {
        let grade_spec = GradeSpec::for_class(ExecutorClass::AlwaysOnTest).unwrap();
        let participant = Participant {
            miner: MinerKey(Hotkey::from_bytes([1; 32])),
            class: grade_spec.class(),
            index: 0,
        };
        let identity = ChallengeIdentity {
            batch: BatchId([1; 16]),
            executor: participant.executor_name(),
            nonce: ChallengeNonce([2; 32]),
        };
        let spec = asked.shape.challenge_spec(identity, None).unwrap();
        let machine = ValidatorConversation::new(spec, asked.limits());
        let fake = Fake::new(does);
        let begun = Instant::now();
        let mut conversation = TimedConversation::new(machine);
        conversation.run_to_commitment(&fake).await;
        let (evidence, remarks) = conversation.take_opening(&fake, None).await;
        (evidence.judge(InstructionSet::best()), remarks, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn both_kinds_of_proof_go_through_and_what_was_signed_is_kept() {
        for (trial, messages) in both_kinds().into_iter().zip([3, 2]) {
            let (verdict, remarks, _) = verdict(Does::Honest, trial).await;
            assert!(matches!(verdict, ProofVerdict::Passed(_)), "{verdict:?}");
            assert_eq!((remarks.seals.len(), remarks.trouble), (messages, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_executor_costs_its_limit_and_no_more() {
        let (verdict, _, took) = verdict(Does::Silent, both_kinds()[1]).await;
        assert!(
            matches!(verdict, ProofVerdict::Zero(ZeroReason::NotCommitted { .. })),
            "{verdict:?}"
        );
        assert!(took < Duration::from_secs(61), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn floods_refusals_and_leavings_have_their_names() {
        let (flood, _, _) = verdict(Does::Floods, both_kinds()[1]).await;
        assert!(
            matches!(flood, ProofVerdict::Zero(ZeroReason::Oversized { .. })),
            "{flood:?}"
        );
        let (refused, remarks, _) = verdict(Does::Refuses, both_kinds()[0]).await;
        assert_eq!(refused, ProofVerdict::Zero(ZeroReason::Gone));
        assert_eq!(
            remarks.trouble.as_deref(),
            Some("its program answered 507: no  room")
        );
        for trial in both_kinds() {
            let (left, _, _) = verdict(Does::LeavesAfter, trial).await;
            assert_eq!(left, ProofVerdict::Zero(ZeroReason::Vanished));
        }
    }
}
