//! Where everything that happens to sessions and requests is put in order: one task owns the pools and does what they say.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{OptionFuture, join_all};
use muster_openai::OpenAiError;
use muster_process::SharedClock;
use muster_protocol::{Digest, JobId, MinerKey, Timestamp};
use muster_session_pool::pool::{Census, UNWELL};
use muster_session_pool::{Effect, Event, Pool, RequestNo, Service, SessionNo};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use uuid::Uuid;

use crate::gateway::Core;
use crate::line::Line;
use crate::starter;

/// How long sessions may take to say their last word when the gateway stops.
const LAST_WORDS: Duration = Duration::from_secs(4);

/// What a request is told.
#[derive(Debug)]
pub(crate) enum Turn {
    /// This session serves it.
    Yours(SessionNo, Arc<Line>),
    /// Nobody will.
    Refused(OpenAiError),
    /// The session that serves it is taken for dead, and its answer has begun.
    Broken,
}

/// What the desk is told.
pub(crate) enum Word {
    /// Somebody asks.
    Enter {
        pool: usize,
        request: RequestNo,
        user: Digest,
        turns: mpsc::UnboundedSender<Turn>,
    },
    /// Something happened.
    Happened(usize, Event),
    /// A session is up.
    Up(usize, SessionNo, Arc<Line>),
    /// Somebody wants to know how things stand.
    Look(oneshot::Sender<Vec<View>>),
    /// Somebody wants the sessions that serve.
    Lines(oneshot::Sender<Vec<Arc<Line>>>),
}

/// How one model stands.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// The model.
    pub model: String,
    /// Sessions that start, serve, serve out; requests that wait and are served.
    pub starting: usize,
    /// See above.
    pub live: usize,
    /// See above.
    pub draining: usize,
    /// See above.
    pub waiting: usize,
    /// See above.
    pub serving: usize,
    /// Why no session could be started lately; empty if one could.
    pub trouble: String,
    /// Those that serve.
    pub sessions: Vec<LineView>,
}

/// One session that serves.
#[derive(Clone, Debug, Serialize)]
pub struct LineView {
    /// Its id.
    pub session: String,
    /// The job that it is.
    pub job: JobId,
    /// Who runs it.
    pub miner: MinerKey,
    /// Where.
    pub address: String,
    /// Until when it is attested.
    pub until: Timestamp,
}

/// The way to the desk.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    words: mpsc::UnboundedSender<Word>,
    next: Arc<AtomicU64>,
}

/// A request's place. Giving it up tells the desk that the client has gone.
#[derive(Debug)]
pub(crate) struct Ticket {
    desk: Desk,
    pool: usize,
    request: RequestNo,
    turns: mpsc::UnboundedReceiver<Turn>,
    over: bool,
}

impl Desk {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Word>) {
        // Unbounded, but everyone who sends holds a permit for a request or is one of a bounded number of sessions.
        let (words, heard) = mpsc::unbounded_channel();
        let next = Arc::default();
        (Self { words, next }, heard)
    }

    /// Joins the queue of a model.
    pub(crate) fn enter(&self, pool: usize, user: Digest) -> Ticket {
        let request = RequestNo(self.next.fetch_add(1, Ordering::Relaxed));
        let (tell, turns) = mpsc::unbounded_channel();
        self.say(Word::Enter {
            pool,
            request,
            user,
            turns: tell,
        });
        Ticket {
            desk: self.clone(),
            pool,
            request,
            turns,
            over: false,
        }
    }

    /// How things stand; empty once the gateway has stopped.
    pub(crate) async fn look(&self) -> Vec<View> {
        let (tell, seen) = oneshot::channel();
        self.say(Word::Look(tell));
        seen.await.unwrap_or_default()
    }

    /// The sessions that serve; none once the gateway has stopped.
    pub(crate) async fn lines(&self) -> Vec<Arc<Line>> {
        let (tell, seen) = oneshot::channel();
        self.say(Word::Lines(tell));
        seen.await.unwrap_or_default()
    }

    pub(crate) fn say(&self, word: Word) {
        // A desk that is gone has stopped with the gateway; whoever waits for it sees its channel close.
        let _ = self.words.send(word);
    }

    pub(crate) fn happened(&self, pool: usize, event: Event) {
        self.say(Word::Happened(pool, event));
    }
}

impl Ticket {
    /// What the desk says next.
    pub(crate) async fn next(&mut self) -> Turn {
        self.turns.recv().await.unwrap_or_else(|| {
            Turn::Refused(OpenAiError::Unavailable {
                message: "the gateway is stopping".to_owned(),
                retry_after: Duration::from_secs(5),
            })
        })
    }

    pub(crate) fn first_byte(&self, session: SessionNo) {
        self.say(Event::FirstByte(self.request, session));
    }

    pub(crate) fn broke(&self, session: SessionNo) {
        self.say(Event::Broke(self.request, session));
    }

    pub(crate) fn served(mut self, session: SessionNo) {
        self.over = true;
        self.say(Event::Served(self.request, session));
    }

    fn say(&self, event: Event) {
        self.desk.happened(self.pool, event);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.over {
            self.say(Event::Left(self.request));
        }
    }
}

/// One model's pool and what belongs to it.
struct Station {
    service: Service,
    pool: Pool,
    sessions: HashMap<SessionNo, Open>,
    turns: HashMap<RequestNo, mpsc::UnboundedSender<Turn>>,
}

/// A session that the pool counts.
struct Open {
    job: JobId,
    line: Option<Arc<Line>>,
    /// Dropping it ends the session's watcher.
    _watched: oneshot::Sender<()>,
}

/// The task that owns the pools.
pub(crate) struct Dispatcher {
    core: Arc<Core>,
    stations: Vec<Station>,
    words: mpsc::UnboundedReceiver<Word>,
}

impl Dispatcher {
    pub(crate) fn new(core: Arc<Core>, words: mpsc::UnboundedReceiver<Word>) -> Self {
        let limits = core.settings.limits();
        let station = |service: &Service| Station {
            service: service.clone(),
            pool: Pool::new(limits),
            sessions: HashMap::new(),
            turns: HashMap::new(),
        };
        let stations = core.whitelist.services().iter().map(station).collect();
        Self {
            core,
            stations,
            words,
        }
    }

    pub(crate) async fn run(mut self) {
        let clock = SharedClock::clone(&self.core.clock);
        let stop = self.core.tasks.token();
        self.tick(clock.now());
        loop {
            let now = clock.now();
            let due = self
                .stations
                .iter()
                .filter_map(|station| station.pool.wake(now))
                .min();
            let wake = OptionFuture::from(due.map(|due| clock.sleep_until(due)));
            let word = tokio::select! {
                () = stop.cancelled() => break,
                word = self.words.recv() => word,
                Some(()) = wake => None,
            };
            match word {
                Some(word) => self.hear(word, clock.now()),
                None => self.tick(clock.now()),
            }
        }
        self.stop(clock.now()).await;
    }

    fn tick(&mut self, now: Timestamp) {
        for pool in 0..self.stations.len() {
            self.apply(pool, Event::Tick, now);
        }
    }

    fn hear(&mut self, word: Word, now: Timestamp) {
        match word {
            Word::Enter {
                pool,
                request,
                user,
                turns,
            } => {
                if let Some(station) = self.stations.get_mut(pool) {
                    station.turns.insert(request, turns);
                }
                self.apply(pool, Event::Arrived { request, user }, now);
            }
            Word::Happened(pool, event) => {
                let (gone, died) = (event.over(), event.death());
                if let Event::Unusable(session, why) = &event {
                    let model = self.stations.get(pool).map(|station| &station.service.model);
                    tracing::warn!(session = session.0, ?model, why, "a session cannot be used");
                    metrics::counter!("muster_gateway_sessions_unusable_total").increment(1);
                }
                self.apply(pool, event, now);
                if let Some(session) = died {
                    self.close(pool, session, "its job is over", false);
                }
                if let (Some(request), Some(station)) = (gone, self.stations.get_mut(pool)) {
                    station.turns.remove(&request);
                }
            }
            Word::Up(pool, session, line) => {
                let until = line.until;
                if let Some(open) = self.open(pool, session) {
                    open.line = Some(line);
                    self.apply(pool, Event::Ready(session, until), now);
                }
            }
            Word::Lines(tell) => {
                // Whoever asked may have gone.
                let _ = tell.send(self.stations.iter().flat_map(Station::serving).collect());
            }
            Word::Look(tell) => {
                // Whoever asked may have gone.
                let _ = tell.send(self.stations.iter().map(Station::view).collect());
            }
        }
    }

    fn open(&mut self, pool: usize, session: SessionNo) -> Option<&mut Open> {
        self.stations.get_mut(pool)?.sessions.get_mut(&session)
    }

    fn apply(&mut self, pool: usize, event: Event, now: Timestamp) {
        let Some(station) = self.stations.get_mut(pool) else {
            return;
        };
        let effects = station.pool.apply(event, now);
        for effect in effects {
            match effect {
                Effect::Start(session) => self.start(pool, session),
                Effect::Route(request, session) => self.route(pool, request, session),
                Effect::Refuse(request, refusal) => {
                    metrics::counter!("muster_gateway_refused_total", "code" => refusal.code()).increment(1);
                    self.tell(pool, request, Turn::Refused(refusal));
                }
                Effect::BreakOff(request) => self.tell(pool, request, Turn::Broken),
                Effect::Close(session, why) => self.close(pool, session, why, why != UNWELL),
            }
        }
        self.measure(pool);
    }

    fn start(&mut self, pool: usize, session: SessionNo) {
        let Some(station) = self.stations.get_mut(pool) else {
            return;
        };
        let job = JobId::from_uuid(Uuid::new_v4());
        let (watched, unwatched) = oneshot::channel();
        tracing::info!(session = session.0, model = station.service.model, %job, "starting a session");
        station.sessions.insert(
            session,
            Open {
                job,
                line: None,
                _watched: watched,
            },
        );
        let started = starter::Started {
            core: Arc::clone(&self.core),
            service: station.service.clone(),
            pool,
            session,
            job,
        };
        drop(self.core.tasks.spawn("session", started.watch(unwatched)));
    }

    fn route(&mut self, pool: usize, request: RequestNo, session: SessionNo) {
        let line = self.open(pool, session).and_then(|open| open.line.clone());
        match line {
            Some(line) => self.tell(pool, request, Turn::Yours(session, line)),
            // The pool routes to sessions that are up, and a session is up once its line is here.
            None => tracing::error!(session = session.0, "a session without a connection was chosen"),
        }
    }

    fn tell(&self, pool: usize, request: RequestNo, turn: Turn) {
        let turns = self
            .stations
            .get(pool)
            .and_then(|station| station.turns.get(&request));
        if let Some(turns) = turns {
            // Whoever has gone says so by its ticket.
            let _ = turns.send(turn);
        }
    }

    /// `ours`: for no fault of the session's.
    fn close(&mut self, pool: usize, session: SessionNo, why: &'static str, ours: bool) {
        let Some(station) = self.stations.get_mut(pool) else {
            return;
        };
        let Some(open) = station.sessions.remove(&session) else {
            return;
        };
        let (core, model) = (Arc::clone(&self.core), station.service.model.clone());
        tracing::info!(session = session.0, model, job = %open.job, why, "closing a session");
        if let Some(line) = open.line.as_ref().filter(|_| ours) {
            line.end();
        }
        drop(self.core.tasks.spawn("session's end", async move {
            core.close(open.job, open.line, why).await;
        }));
    }

    async fn stop(mut self, now: Timestamp) {
        const WHY: &str = "the gateway is stopping";
        for pool in 0..self.stations.len() {
            let Some(station) = self.stations.get_mut(pool) else {
                continue;
            };
            for effect in station.pool.apply(Event::Stop, now) {
                match effect {
                    Effect::Refuse(request, refusal) => self.tell(pool, request, Turn::Refused(refusal)),
                    // All of them are closed below.
                    Effect::Start(_) | Effect::Route(..) | Effect::BreakOff(_) | Effect::Close(..) => {}
                }
            }
        }
        let open = self
            .stations
            .iter_mut()
            .flat_map(|station| station.sessions.drain());
        let ends = open.map(|(_, open)| {
            if let Some(line) = &open.line {
                line.end();
            }
            self.core.close(open.job, open.line, WHY)
        });
        // What takes longer is called off when the next process starts.
        let _ = timeout(LAST_WORDS, join_all(ends)).await;
    }

    fn measure(&self, pool: usize) {
        if let Some(station) = self.stations.get(pool) {
            let Census {
                starting,
                live,
                draining,
                waiting,
                serving,
            } = station.pool.census();
            let model = station.service.model.clone();
            for (state, number) in [("starting", starting), ("live", live), ("draining", draining)] {
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                metrics::gauge!("muster_gateway_sessions", "model" => model.clone(), "state" => state)
                    .set(number);
            }
            for (state, number) in [("waiting", waiting), ("served", serving)] {
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                metrics::gauge!("muster_gateway_requests", "model" => model.clone(), "state" => state)
                    .set(number);
            }
        }
    }
}

impl Station {
    fn serving(&self) -> impl Iterator<Item = Arc<Line>> {
        let live = self
            .sessions
            .iter()
            .filter(|(number, _)| self.pool.serves(**number));
        live.filter_map(|(_, open)| open.line.clone())
    }

    fn view(&self) -> View {
        let census = self.pool.census();
        let lines = self.sessions.values().filter_map(|open| open.line.as_ref());
        View {
            model: self.service.model.clone(),
            starting: census.starting,
            live: census.live,
            draining: census.draining,
            waiting: census.waiting,
            serving: census.serving,
            trouble: self.pool.trouble().to_owned(),
            sessions: lines
                .map(|line| LineView {
                    session: line.session.to_string(),
                    job: line.job,
                    miner: line.miner,
                    address: line.address().to_owned(),
                    until: line.until,
                })
                .collect(),
        }
    }
}
