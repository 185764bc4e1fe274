//! One batch, from its block to its last judgement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::sealed::Line;
use muster_grading::batch::{Action, Batch, Event, Rules};
use muster_grading::course::Course;
use muster_grading::evidence::{Head, SeatFile};
use muster_grading::judgement::Judgement;
use muster_grading::plan::{BlockHash, Plan, Seat, Serving, draw, in_sessions};
use muster_grading::settlement::{Capacity, capacities, silence};
use muster_process::store::StoreError;
use muster_protocol::ExecutorClass;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::backend::Roll;
use crate::stand::{Stand, Told, Word};
use crate::state::{Core, Refused, micros};

/// What a lease may live beyond the longest course: fetching openings, judging.
const SPARE: Duration = Duration::from_secs(600);

/// A batch under way, as its shell holds it.
struct Call {
    core: Arc<Core>,
    plan: Plan,
    batch: Batch,
    /// Those that are challenged in the sessions that they serve.
    sessions: BTreeMap<usize, Arc<Line>>,
    begun: Instant,
    lives: Duration,
    /// The way to each executor that is leased.
    stands: BTreeMap<usize, mpsc::UnboundedSender<Word>>,
    telling: mpsc::UnboundedSender<(usize, Told)>,
    seats: BTreeMap<usize, SeatFile>,
}

/// Runs the batch that begins with this block. Returns its id, or the reason why there is none.
pub(crate) async fn run(
    core: &Arc<Core>,
    block: u64,
    hash: BlockHash,
) -> Result<Result<String, Refused>, StoreError> {
    let stop = core.tasks.token();
    let announced = tokio::select! {
        () = stop.cancelled() => return Ok(Err(Refused::Stopped)),
        announced = core.host.announced() => announced,
    };
    let roll = graded(core, announced);
    let plan = draw(&hash, core.host.me(), &roll.announced, core.settings.bounds());
    if plan.seats.is_empty() && roll.silent.is_empty() {
        return Ok(Err(Refused::Nobody));
    }
    let lines = core.host.serving().await;
    let head = head(core, (block, hash), roll, &plan, &lines).await?;
    let sessions = sessions(&plan.seats, &head.serving, &lines);
    let id = hex::encode(plan.id.0);
    tracing::info!(
        batch = id,
        block,
        executors = plan.seats.len(),
        beyond = plan.beyond.len(),
        left_out = plan.left_out.len(),
        silent = head.silent.len(),
        in_sessions = sessions.len(),
        "a batch begins"
    );
    core.book.begin(&plan.id, &head, core.clock.now()).await?;
    let (telling, told) = mpsc::unbounded_channel();
    let mut call = Call::new(core, plan, sessions, telling);
    let finished = tokio::select! {
        () = stop.cancelled() => false,
        () = call.go(told) => true,
    };
    if !finished {
        return Ok(Err(Refused::Stopped));
    }
    call.finish(&head).await?;
    Ok(Ok(id))
}

/// The announcements that count: executors of classes that are graded, and as many silent miners as a batch may have executors.
fn graded(core: &Core, roll: Roll) -> Roll {
    let graded: Vec<ExecutorClass> = core.courses.iter().map(Course::class).collect();
    let Roll {
        mut announced,
        mut silent,
    } = roll;
    announced.retain(|said| said.count > 0 && graded.contains(&said.class));
    silent.sort_unstable();
    silent.truncate(usize::try_from(core.settings.executors).unwrap_or(usize::MAX));
    Roll { announced, silent }
}

/// The head of the batch's file: everything that is decided before the first challenge.
async fn head(
    core: &Core,
    (block, hash): (u64, BlockHash),
    roll: Roll,
    plan: &Plan,
    lines: &[Arc<Line>],
) -> Result<Head, StoreError> {
    Ok(Head {
        validator: core.host.me(),
        block,
        hash,
        announced: roll.announced,
        silent: roll.silent,
        serving: lines.iter().map(|line| serving(line)).collect(),
        bounds: core.settings.bounds(),
        before: core.book.proven_before(&plan.seats).await?,
        courses: core.courses.clone(),
    })
}

/// A session, as the evidence names it.
fn serving(line: &Line) -> Serving {
    Serving {
        miner: line.miner(),
        class: line.class(),
        job: line.job(),
    }
}

/// The sessions in which executors of the batch are challenged, by place.
fn sessions(seats: &[Seat], serving: &[Serving], lines: &[Arc<Line>]) -> BTreeMap<usize, Arc<Line>> {
    let places = in_sessions(seats, serving).into_iter();
    places
        .filter_map(|(place, job)| {
            let line = lines.iter().find(|line| line.job() == job)?;
            Some((place, Arc::clone(line)))
        })
        .collect()
}

/// The longest that a class's course can take, its retries among it.
fn longest(course: &Course) -> u64 {
    let trials = course
        .trials
        .iter()
        .map(|trial| trial.longest_us().saturating_mul(2));
    trials.fold(0, u64::saturating_add)
}

impl Call {
    /// A batch whose clock starts now.
    fn new(
        core: &Arc<Core>,
        plan: Plan,
        sessions: BTreeMap<usize, Arc<Line>>,
        telling: mpsc::UnboundedSender<(usize, Told)>,
    ) -> Self {
        let begun = Instant::now();
        let gather = core.settings.gather();
        let rules = Rules {
            gather_us: micros(gather),
        };
        let longest = core.courses.iter().map(longest).max().unwrap_or(0);
        let batch = Batch::new(plan.seats.clone(), core.courses.clone(), rules, 0);
        Self {
            core: Arc::clone(core),
            batch: batch.in_sessions(sessions.keys().copied()),
            sessions,
            plan,
            begun,
            lives: gather + Duration::from_micros(longest) + SPARE,
            stands: BTreeMap::new(),
            telling,
            seats: BTreeMap::new(),
        }
    }

    /// Until everybody is judged.
    async fn go(&mut self, mut told: mpsc::UnboundedReceiver<(usize, Told)>) {
        let mut actions = self.batch.tick(0);
        loop {
            if self.act(actions) {
                return;
            }
            let due = self
                .batch
                .deadline_us()
                .map(|us| self.begun + Duration::from_micros(us));
            actions = tokio::select! {
                // Whatever was seen before a limit passed counts before it.
                biased;
                told = told.recv() => match told {
                    Some((place, told)) => self.hear(place, told),
                    // We hold a sender ourselves.
                    None => return,
                },
                () = sleep_until(due.unwrap_or(self.begun)), if due.is_some() => {
                    let now = self.now();
                    self.batch.tick(now)
                }
            };
        }
    }

    fn hear(&mut self, place: usize, told: Told) -> Vec<Action> {
        let now = self.now();
        match told {
            Told::Event(event) => {
                if let Event::Absent(absence) = &event {
                    tracing::info!(place, ?absence, "an executor will not come to the barrier");
                }
                self.batch.apply(place, event, now)
            }
            Told::Session(job, attestation) => {
                let seat = self.seats.entry(place).or_default();
                seat.job = Some(job.to_string());
                seat.attestation = Some(attestation);
                Vec::new()
            }
            Told::Judged(tried) => self.batch.apply(place, Event::Judged(tried), now),
        }
    }

    /// Does it; whether the batch is over.
    fn act(&mut self, actions: Vec<Action>) -> bool {
        let mut over = false;
        for action in actions {
            match action {
                Action::Lease(places) => {
                    for place in places {
                        self.lease(place);
                    }
                }
                Action::Fire {
                    trial,
                    attempt,
                    seats,
                } => {
                    tracing::info!(trial, attempt, executors = seats.len(), "challenges go out");
                    self.say(&seats, Word::Fire(trial));
                }
                Action::Judge(places) => self.say(&places, Word::Judge),
                Action::Release(places) => {
                    self.say(&places, Word::Release);
                    for place in places {
                        self.stands.remove(&place);
                    }
                }
                Action::Finish => over = true,
            }
        }
        over
    }

    fn say(&self, places: &[usize], word: Word) {
        for place in places {
            if let Some(stand) = self.stands.get(place) {
                // Whoever is gone has said so, or its round's end says it.
                let _ = stand.send(word);
            }
        }
    }

    fn lease(&mut self, place: usize) {
        let (Some(seat), Some(course)) = (self.plan.seats.get(place), self.batch.course(place)) else {
            return;
        };
        let (word, words) = mpsc::unbounded_channel();
        let stand = Stand {
            core: Arc::clone(&self.core),
            batch: self.plan.id,
            place,
            seat: *seat,
            course: course.clone(),
            session: self.sessions.get(&place).cloned(),
            begun: self.begun,
            lives: self.lives,
            telling: self.telling.clone(),
        };
        drop(self.core.tasks.spawn("executor in a batch", stand.run(words)));
        self.stands.insert(place, word);
    }

    async fn finish(mut self, head: &Head) -> Result<(), StoreError> {
        let Some((mut judgements, marks)) = self.batch.judgements(&head.proven_before()) else {
            return Ok(());
        };
        for (place, absence) in self.batch.absent() {
            self.seats.entry(*place).or_default().absence = Some(absence.clone());
        }
        let mut counted = capacities(&self.plan.seats, &judgements);
        // What they proved in batches before counts no longer.
        counted.extend(head.silent.iter().flat_map(|silent| {
            head.courses.iter().map(|course| Capacity {
                miner: silent.miner,
                class: course.class(),
                proven: 0,
                excused: 0,
            })
        }));
        judgements.extend(head.silent.iter().map(silence));
        let now = self.core.clock.now();
        let book = &self.core.book;
        book.finish(&self.plan, head, &marks, &judgements, &self.seats, &counted, now)
            .await?;
        tell(&self.plan, head, &judgements, &counted);
        // What was proven of whom stays; what shows it is large.
        book.forget(self.core.settings.kept_since(now)).await
    }

    fn now(&self) -> u64 {
        micros(Instant::now().saturating_duration_since(self.begun))
    }
}

fn tell(plan: &Plan, head: &Head, judgements: &[Judgement], counted: &[Capacity]) {
    for (seat, judgement) in plan.seats.iter().zip(judgements) {
        tracing::info!(miner = %seat.miner, class = %seat.class, executor = seat.index, %judgement, "graded");
    }
    for silent in &head.silent {
        tracing::info!(miner = %silent.miner, said = silent.said, "a miner did not say what it has: it counts for nothing");
    }
    let proven: u32 = counted.iter().map(|count| count.proven).sum();
    tracing::info!(
        batch = hex::encode(plan.id.0),
        executors = judgements.len(),
        proven,
        "a batch is over"
    );
}
