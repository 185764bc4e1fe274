//! One executor in a batch: leased, brought to the barrier, challenged when the batch says so, given back.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::host::{News, Order};
use muster_gateway::sealed::{Line, Opening};
use muster_grading::batch::Event;
use muster_grading::course::Course;
use muster_grading::evidence::ProofFile;
use muster_grading::judgement::{Absence, said};
use muster_grading::plan::Seat;
use muster_grading::seals::{IN_SESSION, PATH};
use muster_grading::trial_result::Tried;
use muster_hardware_proof::keys::{BatchId, Identity, Nonce};
use muster_hardware_proof::session::Validator;
use muster_hardware_proof::{Engine, Verdict};
use muster_process::certificate;
use muster_protocol::JobId;
use muster_session_pool::Service;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use crate::conversation::Conversation;
use crate::state::{Core, micros};
use crate::transport::{Ask, Way};

/// News of one job that wait.
const NEWS: usize = 8;
/// Between two looks at whether who stands at the barrier is still there; they also keep the connection warm.
const LOOK: Duration = Duration::from_secs(10);

/// How long a session may take to have its grader come up.
const STAND_BY: Duration = Duration::from_secs(150);
/// What is said of an executor whose session this validator ended meanwhile.
const ENDED: &str = "the validator ended the session in which it was challenged";

/// Between two tries to lease an executor whose miner has nothing free.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(8),
];

/// What the batch says to one of its executors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    /// Challenge it, now.
    Fire(usize),
    /// Nobody's clock runs any longer: draw, take its opening, judge.
    Judge,
    /// It is needed no more.
    Release,
}

/// What one of them tells the batch.
#[derive(Debug)]
pub(crate) enum Told {
    /// For the machine.
    Event(Event),
    /// Which job it is leased by, and what its miner attested of its session.
    Session(JobId, String),
    /// A proof is judged and kept.
    Judged(Box<Tried>),
}

/// One executor.
pub(crate) struct Stand {
    pub(crate) core: Arc<Core>,
    pub(crate) batch: BatchId,
    pub(crate) place: usize,
    pub(crate) seat: Seat,
    pub(crate) course: Course,
    /// The session in which it is challenged, if it serves one: it is not leased then.
    pub(crate) session: Option<Arc<Line>>,
    /// When the first byte of the first challenge of each round could leave: stamps are told beside it.
    pub(crate) begun: Instant,
    /// How long it may live.
    pub(crate) lives: Duration,
    pub(crate) telling: mpsc::UnboundedSender<(usize, Told)>,
}

impl Stand {
    /// Sees it through until it is released.
    pub(crate) async fn run(self, mut words: mpsc::UnboundedReceiver<Word>) {
        if let Some(line) = self.session.clone() {
            tokio::select! {
                ready = line.stand_by(STAND_BY) => self.in_session(&line, ready, &mut words).await,
                _ = words.recv() => {}
            }
            return;
        }
        let job = Mutex::new(None);
        let (leased, mut heard) = tokio::select! {
            leased = self.lease(&job) => leased,
            _ = words.recv() => {
                self.give_back(&job, "the barrier has closed").await;
                return;
            }
        };
        match leased {
            Ok(line) => {
                if let Some(job) = *job.lock() {
                    self.tell(Told::Session(job, line.attestation.clone()));
                }
                self.tell(Told::Event(Event::Ready));
                let way = Way {
                    line: &line,
                    path: PATH,
                };
                self.stand(way, &mut words, &mut heard).await;
            }
            Err(absence) => self.tell(Told::Event(Event::Absent(absence))),
        }
        self.give_back(&job, "its grading is over").await;
    }

    /// Challenged where it serves, beside whoever is served.
    async fn in_session(
        &self,
        line: &Line,
        ready: Result<(), String>,
        words: &mut mpsc::UnboundedReceiver<Word>,
    ) {
        self.tell(Told::Session(line.job(), line.attestation.clone()));
        match ready {
            Ok(()) => self.tell(Told::Event(Event::Ready)),
            Err(_) if line.is_ending() => return self.tell(Told::Event(Event::Ours(ENDED.to_owned()))),
            Err(why) => {
                let said = said(&format!("in the session that it serves: {why}"));
                return self.tell(Told::Event(Event::Absent(Absence::NotReady { said })));
            }
        }
        // Its gateway watches over the session: nobody tells us anything.
        let (_quiet, mut heard) = mpsc::channel(1);
        let way = Way {
            line,
            path: IN_SESSION,
        };
        self.stand(way, words, &mut heard).await;
    }

    async fn give_back(&self, job: &Mutex<Option<JobId>>, why: &'static str) {
        let job = *job.lock();
        if let Some(job) = job {
            self.core.host.end(job, why).await;
        }
    }

    /// Leases it. Whoever has nothing free is asked again for a while: what it is busy with may be about to end.
    async fn lease(&self, job: &Mutex<Option<JobId>>) -> (Result<Line, Absence>, mpsc::Receiver<News>) {
        let mut pauses = PAUSES.into_iter();
        loop {
            let id = JobId::from_uuid(Uuid::new_v4());
            *job.lock() = Some(id);
            let (news, mut heard) = mpsc::channel(NEWS);
            let leased = self.try_lease(id, news, &mut heard).await;
            let pause = match &leased {
                Err(Absence::NotLeased { .. }) => pauses.next(),
                Ok(_)
                | Err(Absence::NotReady { .. } | Absence::LeftBarrier { .. } | Absence::Void { .. }) => None,
            };
            match pause {
                Some(pause) => self.core.clock.sleep(pause).await,
                None => return (leased, heard),
            }
        }
    }

    async fn try_lease(
        &self,
        job: JobId,
        news: mpsc::Sender<News>,
        heard: &mut mpsc::Receiver<News>,
    ) -> Result<Line, Absence> {
        let void = |why: &dyn std::fmt::Display| Absence::Void {
            said: why.to_string(),
        };
        let core = &self.core;
        let service = core.settings.service(self.seat.class);
        let service: Service = service.ok_or_else(|| void(&"no grader for its class"))?;
        let names = ["muster-grading".to_owned()];
        let made = certificate::make_self_signed(&names).map_err(|error| void(&error))?;
        let order = Order {
            job,
            service: service.clone(),
            certificate: made.pem,
            lives: self.lives,
            starts_within: core.settings.gather(),
            on: Some(self.seat.miner),
            news,
        };
        core.host.begin(order).await.map_err(|why| void(&why))?;
        let (miner, ready) = match heard.recv().await {
            Some(News::Ready { miner, ready }) => (miner, ready),
            Some(News::Ended(why)) => {
                let backed = core.host.backed(job).await;
                let said = said(&why);
                return Err(Absence::NotLeased { said, backed });
            }
            Some(News::Closed(_)) => {
                let said = "its session was over before it began".to_owned();
                return Err(Absence::NotReady { said });
            }
            None => return Err(void(&"its job was forgotten")),
        };
        let opening = Opening {
            me: core.host.me(),
            job,
            service: &service,
            identity: &made.identity,
            until: core.clock.now().plus(self.lives),
            skew: Duration::from_millis(core.settings.skew_ms),
            clock: &core.clock,
            tasks: &core.tasks,
        };
        let opened = Line::open(&opening, miner, *ready).await;
        opened.map_err(|why| Absence::NotReady { said: said(&why) })
    }

    /// At the barrier, and through it as often as the batch says.
    async fn stand(
        &self,
        way: Way<'_>,
        words: &mut mpsc::UnboundedReceiver<Word>,
        heard: &mut mpsc::Receiver<News>,
    ) {
        let mut first = self.prepare(0);
        let mut trial = 0;
        let mut under_way: Option<Conversation> = None;
        let mut number = 0;
        loop {
            tokio::select! {
                word = words.recv() => match word {
                    Some(Word::Fire(which)) => {
                        // The first is ready before the barrier opens.
                        let prepared = first.take().filter(|_| which == 0);
                        let Some(mut conversation) = prepared.or_else(|| self.prepare(which)) else {
                            return;
                        };
                        trial = which;
                        conversation.commit(&way as &dyn Ask).await;
                        under_way = Some(conversation);
                        self.tell(Told::Event(Event::Committed));
                    }
                    Some(Word::Judge) => {
                        let Some(conversation) = under_way.take() else { continue };
                        self.judge(trial, number, conversation, way).await;
                        number += 1;
                    }
                    Some(Word::Release) | None => return,
                },
                news = heard.recv(), if under_way.is_none() => {
                    let why = match news {
                        Some(News::Ended(why)) => why,
                        Some(News::Ready { .. }) => "it moved to another address".to_owned(),
                        Some(News::Closed(_)) => "its session said its last word".to_owned(),
                        None => "its job was forgotten".to_owned(),
                    };
                    self.tell(Told::Event(Event::Lost(said(&why))));
                    return;
                }
                () = tokio::time::sleep(LOOK), if under_way.is_none() => {
                    if let Err(why) = way.line.health().await {
                        tracing::info!(place = self.place, why, "an executor at the barrier is not well");
                    }
                }
            }
        }
    }

    /// A challenge with its bytes and a nonce of its own.
    fn prepare(&self, trial: usize) -> Option<Conversation> {
        let asked = self.course.trials.get(trial)?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).ok()?;
        let identity = Identity {
            batch: self.batch,
            executor: self.seat.name(),
            nonce: Nonce(nonce),
        };
        let spec = asked.shape.spec(identity).ok()?;
        Some(Conversation::new(Validator::new(spec, asked.limits())))
    }

    /// Takes the opening, judges away from the tasks that send and receive, keeps it, and tells.
    async fn judge(&self, trial: usize, number: u32, conversation: Conversation, way: Way<'_>) {
        let Ok(_permit) = self.core.judging.acquire().await else {
            return;
        };
        let sent_us = micros(conversation.sent.saturating_duration_since(self.begun));
        let (evidence, besides) = conversation.open(&way).await;
        let trouble = besides.trouble.clone();
        let judging = tokio::task::spawn_blocking(move || {
            let tried = Tried::judge(trial, &evidence, trouble, Engine::best());
            (tried, evidence)
        });
        let Ok((tried, evidence)) = judging.await else {
            // A defect of the verifier; the round's own end gives the executor up as the validator's loss.
            tracing::error!(place = self.place, "an executor's proof could not be judged");
            return;
        };
        if way.line.is_ending() && matches!(tried.verdict, Verdict::Zero(reason) if !reason.is_wrong()) {
            // What it did not answer it was not let answer.
            return self.tell(Told::Event(Event::Ours(ENDED.to_owned())));
        }
        let proof = ProofFile {
            trouble: besides.trouble,
            seals: besides.seals,
            ..ProofFile::new(trial, sent_us, &evidence)
        };
        match self
            .core
            .book
            .keep_proof(&self.batch, self.place, number, &proof)
            .await
        {
            Ok(()) => self.tell(Told::Judged(Box::new(tried))),
            Err(error) => (self.core.failed)(error),
        }
    }

    fn tell(&self, told: Told) {
        // A batch that is over hears nothing more.
        let _ = self.telling.send((self.place, told));
    }
}
