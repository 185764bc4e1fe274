//! An engine whose executors are entries of a map, and that can be made to answer nothing.

use futures_util::FutureExt as _;
use muster_process::{Tasks, TestClock};
use muster_protocol::{ExecutorClass, ExecutorToken};
use muster_testbed::within;
use uuid::Uuid;

use super::*;

#[derive(Default)]
struct Cluster {
    executors: BTreeMap<AttemptId, EngineExecutor>,
    created: Vec<AttemptId>,
    deleted: Vec<AttemptId>,
    places: u32,
    is_away: bool,
    /// The calls that came while it was away.
    unanswered: u32,
    refuses: Option<String>,
    /// Creates, and then does not answer: the caller cannot know.
    loses_answers: bool,
}

#[derive(Clone, Default)]
struct FakeEngine(Arc<Mutex<Cluster>>);

impl FakeEngine {
    fn answer<T>(&self, act: impl FnOnce(&mut Cluster) -> T) -> Result<T, EngineError> {
        let mut cluster = self.0.lock();
        if cluster.is_away {
            cluster.unanswered += 1;
            return Err(EngineError::Unreachable("the engine is away".to_owned()));
        }
        Ok(act(&mut cluster))
    }
}

impl ExecutorEngine for FakeEngine {
    fn kind(&self) -> &'static str {
        "fake"
    }

    async fn create(&self, order: &Order, _excluded: &BTreeSet<String>) -> Result<(), EngineError> {
        let attempt = order.token.attempt();
        self.answer(|cluster| {
            if let Some(text) = cluster.refuses.clone() {
                return Err(EngineError::Refused(text));
            }
            cluster
                .executors
                .entry(attempt)
                .or_insert_with(|| pending("Resources"));
            cluster.created.push(attempt);
            if std::mem::take(&mut cluster.loses_answers) {
                return Err(EngineError::Unreachable("no answer".to_owned()));
            }
            Ok(())
        })?
    }

    async fn delete(&self, attempt: AttemptId) -> Result<(), EngineError> {
        self.answer(|cluster| {
            cluster.executors.remove(&attempt);
            cluster.deleted.push(attempt);
        })
    }

    async fn survey(&self, excluded: &BTreeSet<String>) -> Result<Survey, EngineError> {
        let hosts = u32::try_from(excluded.len()).unwrap();
        self.answer(|cluster| Survey {
            executors: cluster.executors.clone(),
            places: cluster.places - hosts,
        })
    }
}

fn pending(reason: &str) -> EngineExecutor {
    EngineExecutor::Pending {
        reason: reason.to_owned(),
    }
}

fn running(host: &str) -> EngineExecutor {
    EngineExecutor::Running {
        host: Some(host.to_owned()),
    }
}

fn order() -> Order {
    Order {
        token: ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4()),
        class: ExecutorClass::AlwaysOnTest,
        private_image: false,
        miner_address: "ws://127.0.0.1:1".to_owned(),
        lasts: Duration::from_secs(60),
        notice: crate::Notice::default(),
    }
}

struct World {
    engine: FakeEngine,
    manager: EngineExecutors<FakeEngine>,
    clock: TestClock,
    _tasks: Tasks,
}

impl World {
    fn new() -> Self {
        let (engine, clock, tasks) = (FakeEngine::default(), TestClock::default(), Tasks::new());
        engine.0.lock().places = 3;
        let manager = EngineExecutors::new(engine.clone(), Arc::new(clock.clone()));
        drop(tasks.spawn("survey", manager.clone().follow(tasks.token())));
        Self {
            engine,
            manager,
            clock,
            _tasks: tasks,
        }
    }

    fn show(&self, attempt: AttemptId, executor: EngineExecutor) {
        self.engine.0.lock().executors.insert(attempt, executor);
    }

    /// Lets time pass until the condition holds.
    async fn until(&self, is: impl Fn(&Cluster, &PoolView) -> bool) {
        let passes = async {
            while !is(&self.engine.0.lock(), &self.manager.view().unwrap()) {
                self.clock.advance(SURVEY_EVERY);
                tokio::task::yield_now().await;
            }
        };
        within("the state of the cluster", passes).await;
    }

    /// The end of a run, while time passes.
    async fn end(&self, run: Running) -> Result<String, ManagerError> {
        let time = async {
            loop {
                self.clock.advance(SURVEY_EVERY);
                tokio::task::yield_now().await;
            }
        };
        let ended = async {
            tokio::select! {
                end = run => end,
                () = time => panic!("time does not end"),
            }
        };
        within("the end of the run", ended).await
    }
}

#[tokio::test]
async fn an_executor_that_waits_says_why_runs_and_is_taken_away_after_its_lease() {
    let world = World::new();
    let (order, stop) = (order(), CancellationToken::new());
    let attempt = order.token.attempt();
    let said = order.notice.follow();
    let mut run = world.manager.run(order, stop.clone());
    assert!((&mut run).now_or_never().is_none());
    world
        .until(|_, view| {
            view.waiting
                .get(&attempt)
                .is_some_and(|reason| reason == "Resources")
        })
        .await;
    assert!((&mut run).now_or_never().is_none());
    assert_eq!(*said.borrow(), "fake: Resources");
    assert_eq!(world.manager.view().unwrap().places, Some(3));
    world.show(attempt, running("node1"));
    world.until(|_, view| view.waiting.is_empty()).await;
    let there = |host: &str| world.manager.attempts_on(&[host.to_owned()].into());
    assert_eq!((there("node1"), there("node2")), ([attempt].into(), [].into()));
    assert!((&mut run).now_or_never().is_none());
    stop.cancel();
    assert_eq!(world.end(run).await.unwrap(), "it was taken away");
    let cluster = world.engine.0.lock();
    assert!(cluster.executors.is_empty());
    assert_eq!((cluster.created.len(), cluster.deleted.len()), (1, 1));
}

#[tokio::test]
async fn a_refusal_ends_the_run_with_the_engines_words() {
    let world = World::new();
    world.engine.0.lock().refuses = Some("no node has 9 GPUs".to_owned());
    let run = world.manager.run(order(), CancellationToken::new());
    let error = world.end(run).await.unwrap_err();
    assert_eq!(error.to_string(), "no node has 9 GPUs");
}

#[tokio::test]
async fn an_engine_that_loses_its_answer_is_asked_again_and_starts_one() {
    let world = World::new();
    world.engine.0.lock().loses_answers = true;
    let (order, stop) = (order(), CancellationToken::new());
    let mut run = world.manager.run(order, stop.clone());
    assert!((&mut run).now_or_never().is_none());
    let twice = async {
        loop {
            assert!((&mut run).now_or_never().is_none());
            if world.engine.0.lock().created.len() == 2 {
                return;
            }
            world.clock.advance(SURVEY_EVERY);
            tokio::task::yield_now().await;
        }
    };
    within("the second try", twice).await;
    assert_eq!(world.engine.0.lock().executors.len(), 1);
    stop.cancel();
    assert!(world.end(run).await.is_ok());
    assert!(world.engine.0.lock().executors.is_empty());
}

#[tokio::test]
async fn an_executor_that_ends_or_vanishes_before_its_lease_is_reported_and_cleared() {
    let world = World::new();
    for shown in [
        Some(EngineExecutor::Ended {
            how: "ImagePullBackOff".to_owned(),
        }),
        None,
    ] {
        let order = order();
        let attempt = order.token.attempt();
        let mut run = world.manager.run(order, CancellationToken::new());
        assert!((&mut run).now_or_never().is_none());
        world.until(|_, view| view.waiting.contains_key(&attempt)).await;
        let wanted = match shown {
            Some(executor) => {
                world.show(attempt, executor);
                "ImagePullBackOff"
            }
            None => {
                world.engine.0.lock().executors.remove(&attempt);
                "the engine does not show it any more"
            }
        };
        assert_eq!(world.end(run).await.unwrap(), wanted);
        assert!(world.engine.0.lock().deleted.contains(&attempt));
    }
}

#[tokio::test]
async fn an_engine_counts_as_away_after_three_surveys_without_an_answer_and_no_earlier() {
    let world = World::new();
    world.until(|_, view| view.places == Some(3)).await;
    world.engine.0.lock().is_away = true;
    world
        .until(|cluster, view| {
            let is_early = cluster.unanswered < FAULT_AFTER;
            assert!(!is_early || (view.fault.is_none() && view.places == Some(3)));
            view.fault.is_some()
        })
        .await;
    world.engine.0.lock().is_away = false;
    world.until(|_, view| view.fault.is_none()).await;
}

#[tokio::test]
async fn an_engine_that_is_away_ends_nothing_and_what_it_holds_is_taken_away_once_it_is_back() {
    let world = World::new();
    let (order, stop) = (order(), CancellationToken::new());
    let attempt = order.token.attempt();
    let mut run = world.manager.run(order, stop.clone());
    assert!((&mut run).now_or_never().is_none());
    world.show(attempt, running("node1"));
    world
        .until(|_, view| view.fault.is_none() && view.places == Some(3))
        .await;
    world.engine.0.lock().is_away = true;
    world.until(|_, view| view.fault.is_some()).await;
    for _ in 0..20 {
        world.clock.advance(RETRY.max);
        tokio::task::yield_now().await;
        assert!(
            (&mut run).now_or_never().is_none(),
            "an engine's silence is no end"
        );
    }
    stop.cancel();
    for _ in 0..20 {
        world.clock.advance(RETRY.max);
        tokio::task::yield_now().await;
        assert!((&mut run).now_or_never().is_none(), "it may still run there");
    }
    world.engine.0.lock().is_away = false;
    assert!(world.end(run).await.is_ok());
    assert!(world.engine.0.lock().executors.is_empty());
}

#[tokio::test]
async fn the_next_process_takes_away_what_has_no_lease_and_goes_on_with_the_rest() {
    let world = World::new();
    let kept = order();
    let (lost, attempt) = (AttemptId::from_uuid(Uuid::new_v4()), kept.token.attempt());
    world.show(lost, running("node1"));
    world.show(attempt, running("node2"));
    let stop = CancellationToken::new();
    let mut resumed = world.manager.resume(kept, false, stop.clone()).unwrap();
    assert!((&mut resumed).now_or_never().is_none());
    let reclaim = world.manager.reclaim([attempt].into());
    let reclaimed = async {
        tokio::pin!(reclaim);
        while (&mut reclaim).now_or_never().is_none() {
            world.clock.advance(SURVEY_EVERY);
            tokio::task::yield_now().await;
        }
    };
    within("an executor without a lease is taken away", reclaimed).await;
    assert_eq!(world.engine.0.lock().deleted, [lost]);
    assert!((&mut resumed).now_or_never().is_none());
    stop.cancel();
    assert!(world.end(resumed).await.is_ok());
    assert_eq!(world.engine.0.lock().deleted, [lost, attempt]);
    // Of one that is not there, nothing is to be waited for and nothing to be deleted.
    let absent = world
        .manager
        .resume(order(), false, CancellationToken::new())
        .unwrap();
    assert_eq!(world.end(absent).await.unwrap(), "it is not on fake");
    assert_eq!(world.engine.0.lock().deleted.len(), 2);
}

#[tokio::test]
async fn a_host_that_is_emptied_counts_no_more() {
    let world = World::new();
    world.manager.settled().await;
    assert_eq!(world.manager.view().unwrap().places, Some(3));
    world.manager.exclude_hosts(["node1".to_owned()].into());
    world.until(|_, view| view.places == Some(2)).await;
}
