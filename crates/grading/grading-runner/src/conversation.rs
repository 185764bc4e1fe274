//! One challenge of one executor: what is sent, what comes, and when, by the monotonic clock of this machine.
//!
//! The clock starts with the first byte on the socket and stops with the last byte of the commitment. What comes is read up to the
//! most that could be right and no further, so nobody can fill this machine or keep it reading.

use std::time::Duration;

use bytes::Bytes;
use muster_hardware_proof::session::{Action, Input, Validator};
use tokio::time::{Instant, timeout_at};

use crate::state::micros;
use crate::transport::{Ask, Said};

/// Beyond a limit, so that the machine and not the timer says what was late.
const SLACK: Duration = Duration::from_millis(500);
/// A conversation up to where its clock has stopped, or to its end.
#[derive(Debug)]
pub struct Conversation {
    machine: Validator,
    origin: Instant,
    /// When the first byte of the challenge left.
    pub sent: Instant,
    /// Whether it has ended: nothing is drawn then.
    over: bool,
    /// What was seen that is no message.
    pub trouble: Option<String>,
    /// What the session signed.
    pub seals: Vec<String>,
}

impl Conversation {
    /// A conversation that has not begun; its first message is ready.
    pub fn new(machine: Validator) -> Self {
        let now = Instant::now();
        Self {
            machine,
            origin: now,
            sent: now,
            over: false,
            trouble: None,
            seals: Vec::new(),
        }
    }

    /// Challenges, and goes on until the executor has committed, which stops its clock.
    pub async fn commit(&mut self, line: &dyn Ask) {
        self.origin = Instant::now();
        self.sent = self.origin;
        let challenge = Bytes::copy_from_slice(self.machine.challenge());
        let commitment = muster_hardware_proof::message::Kind::Commitment as u8;
        let mut message = self.exchange(line, challenge, true).await;
        while let Some((kind, bytes)) = message {
            if kind == commitment {
                return;
            }
            // The memory is full: the seed is drawn now and not earlier.
            drop(bytes);
            message = match self.drawn() {
                Some(seed) => self.exchange(line, seed, false).await,
                None => None,
            };
        }
        self.over = true;
    }

    /// Draws, and takes the opening. What was seen.
    pub async fn open(mut self, line: &dyn Ask) -> (muster_hardware_proof::Evidence, Besides) {
        if !self.over
            && let Some(draw) = self.drawn()
        {
            self.exchange(line, draw, false).await;
        }
        let rest = Besides {
            trouble: self.trouble,
            seals: self.seals,
        };
        (self.machine.into_evidence(), rest)
    }

    /// Fresh randomness, and the message that carries it.
    fn drawn(&mut self) -> Option<Bytes> {
        let mut random = [0; 32];
        if getrandom::fill(&mut random).is_err() {
            self.trouble = Some("this machine has no randomness".to_owned());
            return None;
        }
        match self
            .machine
            .apply(Input::Randomness(random), self.at(Instant::now()))
        {
            Some(Action::Send(bytes)) => Some(Bytes::from(bytes)),
            Some(Action::NeedRandomness | Action::End) | None => None,
        }
    }

    /// One message and what comes back for it: its kind, if the conversation goes on.
    async fn exchange(&mut self, line: &dyn Ask, message: Bytes, first: bool) -> Option<(u8, Vec<u8>)> {
        let asked = Instant::now();
        let limits = self.limit(first);
        let mut sent = None;
        let said = {
            let (machine, origin, place) = (&mut self.machine, self.origin, &mut sent);
            let begun = Box::new(move |at: Instant| {
                *place = Some(at);
                if first {
                    machine.apply(Input::Started, micros(at.saturating_duration_since(origin)));
                }
                machine.most_bytes()
            });
            timeout_at(asked + limits + SLACK, line.ask(message, begun)).await
        };
        if first {
            self.sent = sent.unwrap_or(asked);
            if sent.is_none() {
                // Not even its first byte left in time.
                self.machine.apply(Input::Started, self.at(asked));
            }
        }
        let (input, at) = match &said {
            Ok(Said::Message(bytes, at, seal)) => {
                self.seals.extend(seal.clone());
                (Input::Message(bytes), *at)
            }
            Ok(Said::Oversized(length)) => (Input::Oversized(*length), Instant::now()),
            Ok(Said::Nothing(words)) => {
                self.trouble = Some(muster_grading::judgement::said(words));
                (Input::Gone, Instant::now())
            }
            Err(_) => (Input::Tick, Instant::now()),
        };
        match (self.machine.apply(input, self.at(at)), said) {
            (Some(Action::NeedRandomness), Ok(Said::Message(bytes, _, _))) => {
                Some((bytes.get(1).copied().unwrap_or_default(), bytes))
            }
            (_, _) => None,
        }
    }

    /// How long the answer to the next message may take.
    fn limit(&self, first: bool) -> Duration {
        let limits = self.machine.limits();
        let us = match (first, self.machine.deadline_us()) {
            // Not begun: the first phase's limit.
            (true, _) | (false, None) => limits.fill_us.max(limits.commit_us),
            (false, Some(deadline)) => deadline.saturating_sub(self.at(Instant::now())),
        };
        Duration::from_micros(us)
    }

    fn at(&self, instant: Instant) -> u64 {
        micros(instant.saturating_duration_since(self.origin))
    }
}

/// What was seen besides the evidence.
#[derive(Debug)]
pub struct Besides {
    /// What was seen that is no message.
    pub trouble: Option<String>,
    /// What the session signed.
    pub seals: Vec<String>,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Mutex;

    use futures_util::future::BoxFuture;
    use muster_grading::course::Course;
    use muster_grading::plan::Seat;
    use muster_hardware_proof::keys::{BatchId, Identity, Nonce};
    use muster_hardware_proof::prover::{CpuProver, Unwatched, perform};
    use muster_hardware_proof::session::{Caps, Command, Executor};
    use muster_hardware_proof::{Engine, Reason, Verdict};
    use muster_protocol::{ExecutorClass, Hotkey, MinerKey};

    use super::*;

    /// An executor at the other end, and what it does with its answers.
    struct Fake {
        does: Does,
        state: Mutex<(Executor, CpuProver)>,
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
            let caps = Caps {
                log2_n: 10,
                memory_bytes: 1 << 22,
                work: 64,
                read_bytes: 1 << 34,
            };
            let prover = CpuProver::new(Engine::best(), NonZeroUsize::MIN);
            Self {
                does,
                state: Mutex::new((Executor::new(caps), prover)),
            }
        }

        fn answer(&self, message: &[u8]) -> Vec<u8> {
            let mut state = self.state.lock().unwrap();
            let (executor, prover) = &mut *state;
            let Command::Run(task) = executor.message(message).unwrap() else {
                panic!("no work")
            };
            let output = perform(prover, &task, &Unwatched).unwrap();
            let Command::Send(bytes) = executor.output(&output).unwrap() else {
                panic!("no message")
            };
            bytes
        }
    }

    impl Ask for Fake {
        fn ask<'a>(
            &'a self,
            message: Bytes,
            begun: Box<dyn FnOnce(Instant) -> usize + Send + 'a>,
        ) -> BoxFuture<'a, Said> {
            Box::pin(async move {
                let most = begun(Instant::now());
                match self.does {
                    Does::Silent => std::future::pending().await,
                    Does::Floods => Said::Oversized(u64::try_from(most).unwrap() + 1),
                    Does::Refuses => Said::Nothing("its program answered 507: no\u{7} room".to_owned()),
                    Does::LeavesAfter if message[1] == 5 => Said::Nothing("reset".to_owned()),
                    Does::Honest | Does::LeavesAfter => {
                        let bytes = self.answer(&message);
                        assert_eq!(
                            bytes.len(),
                            most,
                            "what is right is read whole, and no more than it"
                        );
                        Said::Message(bytes, Instant::now(), Some("seal".to_owned()))
                    }
                }
            })
        }
    }

    async fn verdict(does: Does, trial: usize) -> (Verdict, Besides, Duration) {
        let course = Course::of(ExecutorClass::AlwaysOnTest).unwrap();
        let seat = Seat {
            miner: MinerKey(Hotkey::from_bytes([1; 32])),
            class: course.class(),
            index: 0,
        };
        let identity = Identity {
            batch: BatchId([1; 16]),
            executor: seat.name(),
            nonce: Nonce([2; 32]),
        };
        let asked = course.trials[trial];
        let machine = Validator::new(asked.shape.spec(identity).unwrap(), asked.limits());
        let fake = Fake::new(does);
        let begun = Instant::now();
        let mut conversation = Conversation::new(machine);
        conversation.commit(&fake).await;
        let (evidence, besides) = conversation.open(&fake).await;
        (evidence.judge(Engine::best()), besides, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn both_kinds_of_proof_go_through_and_what_was_signed_is_kept() {
        for (trial, messages) in [(0, 2), (1, 3)] {
            let (verdict, besides, _) = verdict(Does::Honest, trial).await;
            assert!(matches!(verdict, Verdict::Passed(_)), "{verdict:?}");
            assert_eq!((besides.seals.len(), besides.trouble), (messages, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_executor_costs_its_limit_and_no_more() {
        let (verdict, _, took) = verdict(Does::Silent, 0).await;
        assert!(
            matches!(verdict, Verdict::Zero(Reason::NotCommitted { .. })),
            "{verdict:?}"
        );
        assert!(took < Duration::from_secs(61), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn floods_refusals_and_leavings_have_their_names() {
        let (flood, _, _) = verdict(Does::Floods, 0).await;
        assert!(
            matches!(flood, Verdict::Zero(Reason::Oversized { .. })),
            "{flood:?}"
        );
        let (refused, besides, _) = verdict(Does::Refuses, 1).await;
        assert_eq!(refused, Verdict::Zero(Reason::Gone));
        assert_eq!(
            besides.trouble.as_deref(),
            Some("its program answered 507: no  room")
        );
        for trial in [0, 1] {
            let (left, _, _) = verdict(Does::LeavesAfter, trial).await;
            assert_eq!(left, Verdict::Zero(Reason::Vanished));
        }
    }
}
