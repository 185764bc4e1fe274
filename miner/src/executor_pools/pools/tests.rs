//! Pools whose engines report what the test wrote down.

use futures_util::FutureExt as _;
use muster_protocol::ExecutorToken;
use muster_provisioning::{EngineError, Notice, PoolView};
use uuid::Uuid;

use super::*;

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

/// A manager whose executors run until they are stopped, and whose engine reports what the test wrote down.
#[derive(Default)]
struct Scripted {
    view: Mutex<Option<PoolView>>,
    refuses: bool,
    has: BTreeSet<AttemptId>,
}

impl ExecutorManager for Scripted {
    fn run(&self, order: Order, stop: CancellationToken) -> Running {
        let refuses = self.refuses;
        Box::pin(async move {
            if refuses {
                let text = "no such GPU".to_owned();
                return Err(ManagerError::Engine(EngineError::Refused(text)));
            }
            stop.cancelled().await;
            Ok(order.miner_address)
        })
    }

    fn resume(&self, order: Order, _apart: bool, stop: CancellationToken) -> Option<Running> {
        let is_here = self.has.contains(&order.token.attempt());
        Some(Box::pin(async move {
            if is_here {
                stop.cancelled().await;
            }
            Ok(String::new())
        }))
    }

    fn view(&self) -> Option<PoolView> {
        self.view.lock().clone()
    }
}

fn seen(places: u32) -> Scripted {
    let view = PoolView {
        places: Some(places),
        ..PoolView::default()
    };
    Scripted {
        view: Mutex::new(Some(view)),
        ..Scripted::default()
    }
}

fn pool(engine: EngineKind, count: u32, manager: &Arc<Scripted>) -> Pool {
    let fetching = if engine == EngineKind::Local { 2 } else { 0 };
    let config = PoolConfig {
        name: format!("{engine:?}"),
        count,
        engine,
        dial: match engine {
            EngineKind::Slurm => "ws://here".to_owned(),
            EngineKind::Local | EngineKind::Command | EngineKind::Kubernetes => String::new(),
        },
        ..PoolConfig::default()
    };
    Pool::new(&config, Arc::clone(manager) as Arc<dyn ExecutorManager>, fetching)
}

fn order() -> Order {
    Order {
        token: ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4()),
        class: CLASS,
        private_image: false,
        miner_address: "ws://default".to_owned(),
        lasts: Duration::from_secs(60),
        notice: Notice::default(),
    }
}

fn used(pools: &Pools) -> Vec<u32> {
    pools.status().iter().map(|pool| pool.used).collect()
}

#[test]
fn a_class_has_what_its_engines_have_and_no_more_than_its_pools_allow() {
    let (local, slurm) = (Arc::new(Scripted::default()), Arc::new(seen(2)));
    let pools = Pools::new(vec![
        pool(EngineKind::Local, 1, &local),
        pool(EngineKind::Slurm, 3, &slurm),
    ]);
    let elastic = || pools.elastic().count(CLASS);
    assert_eq!((pools.fixed().count(CLASS), elastic()), (1, 2));
    slurm.view.lock().as_mut().unwrap().places = Some(9);
    assert_eq!(elastic(), 3, "as the configuration allows");
    slurm.view.lock().as_mut().unwrap().places = None;
    assert_eq!(elastic(), 0, "nothing is known yet");
    *slurm.view.lock() = Some(PoolView {
        places: Some(9),
        fault: Some("the controller does not answer".to_owned()),
        ..PoolView::default()
    });
    assert_eq!(elastic(), 0, "an engine that does not answer starts nothing");
    assert!(
        pools.status()[1]
            .fault
            .as_ref()
            .unwrap()
            .contains("does not answer")
    );
}

#[test]
fn the_first_free_place_is_taken_and_a_process_that_only_fetches_comes_last() {
    let (local, slurm) = (Arc::new(Scripted::default()), Arc::new(seen(1)));
    let pools = Pools::new(vec![
        pool(EngineKind::Local, 1, &local),
        pool(EngineKind::Slurm, 1, &slurm),
    ]);
    let none = BTreeSet::new();
    let slots: Vec<_> = (0..4).map(|_| pools.take(CLASS, &none).unwrap()).collect();
    let taken: Vec<_> = slots.iter().map(PoolSlot::index).collect();
    assert_eq!(taken, [0, 1, 0, 0]);
    assert!(pools.take(CLASS, &none).is_none());
    assert!(pools.take(ExecutorClass::AlwaysOnGpu24Gb, &none).is_none());
    let freed = pools.freed();
    drop(slots);
    assert!(freed.has_changed().unwrap());
    assert_eq!(used(&pools), [0, 0]);
    assert_eq!(pools.take(CLASS, &[0].into()).unwrap().index(), 1);
}

#[test]
fn the_cheapest_pool_with_a_place_is_taken_and_equal_ones_in_their_order() {
    let priced = |price: u64| {
        let config = PoolConfig {
            price,
            ..PoolConfig::default()
        };
        Pool::new(&config, Arc::new(Scripted::default()), 0)
    };
    let pools = Pools::new([900, 250, 900, 250].map(priced).into());
    let slots: Vec<_> = std::iter::from_fn(|| pools.take(CLASS, &BTreeSet::new())).collect();
    let taken: Vec<_> = slots.iter().map(PoolSlot::index).collect();
    assert_eq!(taken, [1, 3, 0, 2]);
    drop(slots);
    let others = pools.take(CLASS, &[1, 3].into()).map(|slot| slot.index());
    assert_eq!(others, Some(0), "the cheap ones have refused");
}

#[tokio::test]
async fn a_pool_has_its_own_address_and_its_refusal_is_told() {
    let (slurm, refusing) = (
        Arc::new(seen(1)),
        Arc::new(Scripted {
            refuses: true,
            ..seen(1)
        }),
    );
    let pools = Pools::new(vec![
        pool(EngineKind::Slurm, 1, &slurm),
        pool(EngineKind::Kubernetes, 1, &refusing),
    ]);
    let stop = CancellationToken::new();
    let slot = pools.take(CLASS, &BTreeSet::new()).unwrap();
    assert_eq!(slot.dial(), Some("ws://here"));
    stop.cancel();
    assert_eq!(slot.run(order(), stop).await.unwrap(), "ws://default");
    let slot = pools.take(CLASS, &[0].into()).unwrap();
    assert_eq!(slot.dial(), None);
    let run = slot.run(order(), CancellationToken::new());
    assert!(matches!(run.await, Err(ManagerError::Engine(_))));
    assert_eq!(used(&pools), [0, 0]);
}

#[tokio::test]
async fn a_lease_of_an_earlier_process_takes_the_place_that_it_has() {
    let order = order();
    let having = Scripted {
        has: [order.token.attempt()].into(),
        ..seen(2)
    };
    let (slurm, kubernetes) = (Arc::new(seen(2)), Arc::new(having));
    let pools = Pools::new(vec![
        pool(EngineKind::Slurm, 2, &slurm),
        pool(EngineKind::Kubernetes, 2, &kubernetes),
    ]);
    let stop = CancellationToken::new();
    let mut resumed = pools.resume(order.clone(), false, stop.clone()).unwrap();
    assert!((&mut resumed).now_or_never().is_none());
    assert_eq!(used(&pools), [0, 1]);
    stop.cancel();
    assert!(resumed.await.is_ok());
    assert_eq!(used(&pools), [0, 0]);
    assert!(
        pools.resume(order, true, stop).is_none(),
        "it was a process of the miner's own"
    );
}

#[tokio::test]
async fn an_executor_on_this_machine_is_known_while_it_runs() {
    let local = Arc::new(Scripted::default());
    let pools = Pools::new(vec![pool(EngineKind::Local, 1, &local)]);
    let (order, stop) = (order(), CancellationToken::new());
    let attempt = order.token.attempt();
    let slot = pools.take(CLASS, &BTreeSet::new()).unwrap();
    let mut run = Box::pin(slot.run(order, stop.clone()));
    assert!((&mut run).now_or_never().is_none());
    assert!(pools.is_local(attempt));
    stop.cancel();
    run.await.unwrap();
    assert!(!pools.is_local(attempt));
}
