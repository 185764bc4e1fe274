//! Machines that are files in a folder, with a log of every call: what is provisioned is released.

use std::path::Path;
use std::sync::Arc;

use muster_process::{Clock as _, SystemClock, TestClock};
use muster_protocol::{AttemptId, ExecutorClass, ExecutorToken};
use uuid::Uuid;

use super::*;

/// A cloud whose machines are files in a folder: `provision` makes one, `release` removes it.
struct Cloud(tempfile::TempDir);

impl Cloud {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn machines(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("muster-"))
            .collect();
        names.sort();
        names
    }

    fn manager(&self, provision: &str, release: &str) -> Provisioner {
        let shell = |script: &str| {
            let script = format!("cd {} && {script}", self.0.path().display());
            ["sh", "-c", &script].map(str::to_owned).to_vec()
        };
        let commands = Commands {
            provision: shell(provision),
            release: shell(release),
            limit: Duration::from_secs(30),
            daily: None,
        };
        Provisioner::new(commands, self.records(), Arc::new(SystemClock::default()))
    }

    /// A manager whose commands write each call down, on a clock that the test moves.
    fn counting(&self, clock: &TestClock, daily: Option<Duration>) -> Provisioner {
        let mut commands = self
            .manager(
                &format!("echo provision >> calls && {MAKE}"),
                &format!("echo release >> calls && [ ! -e broken ] && {REMOVE}"),
            )
            .commands;
        // The time of a command is real, and the clock of the test is moved by hours.
        commands.limit = Duration::from_secs(365 * 24 * 3600);
        commands.daily = daily;
        Provisioner::new(commands, self.records(), Arc::new(clock.clone()))
    }

    /// The calls of a kind so far.
    fn calls(&self, kind: &str) -> usize {
        let text = std::fs::read_to_string(self.0.path().join("calls")).unwrap_or_default();
        text.lines().filter(|line| *line == kind).count()
    }

    fn records(&self) -> PathBuf {
        self.0.path().join("records")
    }

    fn recorded(&self) -> usize {
        Records::new(self.records()).paths().len()
    }

    /// Whether the command that reported its process id has ended, and its end was noticed.
    fn has_ended(&self) -> bool {
        let pid = std::fs::read_to_string(self.0.path().join("pid")).unwrap();
        !Path::new("/proc").join(pid.trim()).exists()
    }

    fn has(&self, name: &str) -> impl Fn() -> bool {
        let path = self.0.path().join(name);
        move || path.exists()
    }
}

const TELL_PID: &str = "echo $$ > pid";
const MAKE: &str =
    r#"printf '%s %s %s' "$MINER_ADDRESS" "$EXECUTOR_TOKEN" "$EXECUTOR_CLASS" > "$EXECUTOR_NAME""#;
const REMOVE: &str = r#"rm -f "$EXECUTOR_NAME""#;

fn order() -> Order {
    Order {
        token: ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4()),
        class: ExecutorClass::AlwaysOnTest,
        private_image: false,
        miner_address: "ws://192.0.2.1:8092".to_owned(),
        lasts: LEASE,
        notice: crate::Notice::default(),
    }
}

/// The most that the leases of these tests take.
const LEASE: Duration = Duration::from_secs(3_600);

async fn until(holds: impl Fn() -> bool) {
    muster_testbed::until("the operator's command", async || holds().then_some(())).await;
}

fn spawn(
    manager: &Provisioner,
    order: &Order,
    stop: &CancellationToken,
) -> tokio::task::JoinHandle<Result<String, ManagerError>> {
    #[expect(clippy::disallowed_methods, reason = "a test waits for the task itself")]
    tokio::spawn(manager.run(order.clone(), stop.clone()))
}

#[tokio::test]
async fn an_executor_is_provisioned_for_its_lease_and_released_after_it() {
    let cloud = Cloud::new();
    let (order, stop) = (order(), CancellationToken::new());
    let name = format!("muster-{}", order.token.attempt());
    let running = spawn(
        &cloud.manager(&format!("{TELL_PID} && {MAKE}"), REMOVE),
        &order,
        &stop,
    );
    until(cloud.has(&name)).await;
    // A lease that ends while the command still runs stops the command.
    until(|| cloud.has_ended()).await;
    let told = || std::fs::read_to_string(cloud.0.path().join(&name)).unwrap_or_default();
    let expected = format!("ws://192.0.2.1:8092 {} always_on.test", order.token);
    until(|| told() == expected).await;
    assert_eq!(cloud.recorded(), 1);
    stop.cancel();
    assert_eq!(running.await.unwrap().unwrap(), "it was released");
    assert_eq!(cloud.machines(), Vec::<String>::new());
    assert_eq!(cloud.recorded(), 0);
}

#[tokio::test]
async fn a_command_that_fails_is_named_and_what_it_left_is_released() {
    let cloud = Cloud::new();
    let manager = cloud.manager(&format!("{MAKE}; exit 3"), REMOVE);
    let error = manager.run(order(), CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("exit status: 3"), "{error}");
    assert_eq!(cloud.machines(), Vec::<String>::new());
    assert_eq!(cloud.recorded(), 0);
    let missing = Commands {
        provision: vec!["/no/such".to_owned()],
        release: vec!["true".to_owned()],
        limit: Duration::from_secs(30),
        daily: None,
    };
    let manager = Provisioner::new(missing, cloud.records(), Arc::new(SystemClock::default()));
    let error = manager.run(order(), CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("/no/such"), "{error}");
}

#[tokio::test]
async fn a_lease_that_ends_while_it_is_provisioned_leaves_nothing() {
    let cloud = Cloud::new();
    let (order, stop) = (order(), CancellationToken::new());
    let running = spawn(
        &cloud.manager(&format!("{MAKE}; exec tail -f /dev/null"), REMOVE),
        &order,
        &stop,
    );
    until(cloud.has(&format!("muster-{}", order.token.attempt()))).await;
    stop.cancel();
    let error = running.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("its lease has ended"), "{error}");
    assert_eq!(cloud.machines(), Vec::<String>::new());
}

#[tokio::test]
async fn a_release_that_fails_is_tried_again() {
    let cloud = Cloud::new();
    // The second call succeeds.
    let release = format!("if [ -e tried ]; then {REMOVE}; else touch tried; exit 1; fi");
    let stop = CancellationToken::new();
    stop.cancel();
    let clock = TestClock::default();
    let mut manager = cloud.manager(MAKE, &release);
    manager.clock = Arc::new(clock.clone());
    manager.commands.limit = Duration::from_secs(24 * 3600);
    // Stopped from the start: whether the command got to making the machine or not, it is released.
    let running = spawn(&manager, &order(), &stop);
    until(cloud.has("tried")).await;
    until(|| {
        clock.advance(RETRY.max);
        running.is_finished()
    })
    .await;
    running.await.unwrap().unwrap_err();
    assert_eq!(cloud.machines(), Vec::<String>::new());
    assert_eq!(cloud.recorded(), 0);
}

/// The miner is killed while its executor works: the next process keeps the executor for as long as its lease.
#[tokio::test]
async fn an_executor_whose_lease_goes_on_is_kept_and_released_after_it() {
    let cloud = Cloud::new();
    let order = order();
    let attempt = order.token.attempt();
    let name = format!("muster-{attempt}");
    std::fs::write(cloud.0.path().join(&name), "").unwrap();
    let record = Record::new(&order, SystemClock::default().now());
    drop(Records::new(cloud.records()).write(record).unwrap());
    let manager = cloud.manager(MAKE, REMOVE);
    manager.reclaim(BTreeSet::from([attempt])).await;
    assert_eq!((cloud.machines(), cloud.recorded()), (vec![name], 1));
    let stop = CancellationToken::new();
    let resumed = manager.resume(order.clone(), false, stop.clone()).unwrap();
    stop.cancel();
    resumed.await.unwrap();
    assert_eq!((cloud.machines(), cloud.recorded()), (vec![], 0));
    assert!(
        manager.resume(order, false, stop).is_none(),
        "it is no executor of this manager"
    );
}

/// The miner is killed while its command still works: the next process waits for it and then releases.
#[tokio::test]
async fn machines_of_a_killed_miner_are_released_by_the_next_one_once_its_command_ended() {
    let cloud = Cloud::new();
    let order = order();
    let name = format!("muster-{}", order.token.attempt());
    let records = Records::new(cloud.records());
    let record = Record::new(&order, SystemClock::default().now());
    let held = records.write(record).unwrap();
    // As the killed miner's child: it holds the record through its standard input, and makes the machine late.
    let script = format!("while [ ! -e go ]; do sleep 0.01; done; touch {name}");
    let mut orphan = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(cloud.0.path())
        .stdin(Stdio::from(held.share().unwrap()))
        .spawn()
        .unwrap();
    drop(held);
    let manager = cloud.manager(MAKE, &format!("[ -e {name} ] && {REMOVE}"));
    #[expect(clippy::disallowed_methods, reason = "a test waits for the task itself")]
    let reclaiming = tokio::spawn(manager.reclaim(BTreeSet::new()));
    tokio::task::yield_now().await;
    assert_eq!(cloud.recorded(), 1);
    std::fs::write(cloud.0.path().join("go"), "").unwrap();
    reclaiming.await.unwrap();
    orphan.wait().unwrap();
    assert_eq!(cloud.machines(), Vec::<String>::new());
    assert_eq!(cloud.recorded(), 0);
}

/// The command of a killed miner takes longer than a command may: the next process releases beside it, keeps the
/// record, and releases what the command makes in the end. Another machine does not wait for that.
#[tokio::test]
async fn a_machine_made_after_its_commands_time_is_released() {
    let cloud = Cloud::new();
    let (slow, other) = (order(), order());
    let name = |order: &Order| format!("muster-{}", order.token.attempt());
    let records = Records::new(cloud.records());
    let now = SystemClock::default().now();
    let held = records.write(Record::new(&slow, now)).unwrap();
    let script = format!("while [ ! -e go ]; do sleep 0.01; done; touch {}", name(&slow));
    let mut orphan = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(cloud.0.path())
        .stdin(Stdio::from(held.share().unwrap()))
        .spawn()
        .unwrap();
    drop(held);
    drop(records.write(Record::new(&other, now)).unwrap());
    std::fs::write(cloud.0.path().join(name(&other)), "").unwrap();
    let clock = TestClock::default();
    let mut manager = cloud.manager(MAKE, &format!("echo release >> calls && {REMOVE}"));
    manager.clock = Arc::new(clock.clone());
    manager.commands.limit = Duration::from_secs(3_600);
    #[expect(clippy::disallowed_methods, reason = "a test waits for the task itself")]
    let reclaiming = tokio::spawn(manager.reclaim(BTreeSet::new()));
    until(|| cloud.recorded() == 1).await;
    assert_eq!(
        cloud.machines(),
        Vec::<String>::new(),
        "the other machine is gone"
    );
    clock.advance(Duration::from_secs(3_600));
    until(|| cloud.calls("release") == 2).await;
    assert_eq!(
        cloud.recorded(),
        1,
        "the record stays as long as the command works"
    );
    std::fs::write(cloud.0.path().join("go"), "").unwrap();
    until(|| {
        clock.advance(Duration::from_secs(1));
        cloud.recorded() == 0
    })
    .await;
    reclaiming.await.unwrap();
    orphan.wait().unwrap();
    assert_eq!(cloud.machines(), Vec::<String>::new());
    assert_eq!(cloud.calls("release"), 3);
}

#[tokio::test]
async fn a_torn_record_is_no_executor() {
    let cloud = Cloud::new();
    std::fs::create_dir_all(cloud.records()).unwrap();
    let torn: &Path = &cloud.records().join("x.json");
    std::fs::write(torn, "{\"att").unwrap();
    cloud.manager(MAKE, "exit 1").reclaim(BTreeSet::new()).await;
    assert!(!torn.exists());
}

/// The network is away for an hour when the lease ends: the release is tried until it succeeds.
#[tokio::test]
async fn a_release_is_tried_until_it_succeeds_however_long_the_network_is_away() {
    let (cloud, clock) = (Cloud::new(), TestClock::default());
    let (order, stop) = (order(), CancellationToken::new());
    std::fs::write(cloud.0.path().join("broken"), "").unwrap();
    let running = spawn(&cloud.counting(&clock, None), &order, &stop);
    until(|| !cloud.machines().is_empty()).await;
    stop.cancel();
    // Far more failures than the alarm needs.
    until(|| {
        clock.advance(RETRY.max);
        cloud.calls("release") > 20
    })
    .await;
    assert_eq!((cloud.machines().len(), cloud.recorded()), (1, 1));
    std::fs::remove_file(cloud.0.path().join("broken")).unwrap();
    until(|| {
        clock.advance(RETRY.max);
        running.is_finished()
    })
    .await;
    // The command that provisions may have been stopped before it ended: the machine goes in any case.
    let _ = running.await.unwrap();
    assert_eq!((cloud.machines().len(), cloud.recorded()), (0, 0));
    assert_eq!(cloud.calls("provision"), 1);
}

/// The lease never ends, as it would if its own clock were lost: the machine goes at its deadline, and no other comes
/// in its place.
#[tokio::test]
async fn a_machine_is_released_at_its_deadline_whatever_its_lease_does() {
    let (cloud, clock) = (Cloud::new(), TestClock::default());
    let (order, stop) = (order(), CancellationToken::new());
    let running = spawn(&cloud.counting(&clock, None), &order, &stop);
    until(|| !cloud.machines().is_empty()).await;
    clock.wait_for_sleepers(1).await;
    clock.advance(LEASE - Duration::from_secs(1));
    assert_eq!(cloud.calls("release"), 0);
    until(|| {
        clock.advance(Duration::from_secs(1));
        cloud.machines().is_empty()
    })
    .await;
    until(|| cloud.recorded() == 0).await;
    assert!(!running.is_finished(), "its lease would start another one");
    stop.cancel();
    // The command that provisions may have been stopped before it ended.
    let _ = running.await.unwrap();
    assert_eq!((cloud.calls("provision"), cloud.calls("release")), (1, 1));
}

/// The clock is set back by a day while the miner is away: the machine gets no second day.
#[tokio::test]
async fn a_clock_that_was_set_back_gives_a_machine_no_more_than_its_lease() {
    let (cloud, clock) = (Cloud::new(), TestClock::default());
    let order = order();
    let attempt = order.token.attempt();
    let name = cloud.0.path().join(format!("muster-{attempt}"));
    std::fs::write(&name, "").unwrap();
    let later = clock.now().plus(Duration::from_secs(86_400));
    drop(
        Records::new(cloud.records())
            .write(Record::new(&order, later))
            .unwrap(),
    );
    let manager = cloud.counting(&clock, None);
    manager.reclaim(BTreeSet::from([attempt])).await;
    let stop = CancellationToken::new();
    let resumed = manager.resume(order, false, stop.clone()).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test waits for the task itself")]
    let resumed = tokio::spawn(resumed);
    clock.wait_for_sleepers(1).await;
    clock.advance(LEASE - Duration::from_secs(1));
    assert!(name.exists());
    until(|| {
        clock.advance(Duration::from_secs(1));
        !name.exists()
    })
    .await;
    stop.cancel();
    resumed.await.unwrap().unwrap();
    assert_eq!((cloud.calls("release"), cloud.recorded()), (1, 0));
}

#[tokio::test]
async fn the_limit_of_a_day_refuses_a_machine_with_its_numbers_and_holds_after_a_restart() {
    let (cloud, clock) = (Cloud::new(), TestClock::default());
    let daily = Some(LEASE + Duration::from_secs(600));
    let (first, stop) = (order(), CancellationToken::new());
    let manager = cloud.counting(&clock, daily);
    let running = spawn(&manager, &first, &stop);
    until(|| !cloud.machines().is_empty()).await;
    // The first machine has reserved its deadline.
    let refused = |manager: &Provisioner| manager.check_spend(LEASE).unwrap_err().to_string();
    assert!(
        refused(&manager).contains("3600 s of the 4200 machine-seconds"),
        "{}",
        refused(&manager)
    );
    let error = manager.run(order(), CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, ManagerError::Spent(_)), "{error}");
    assert_eq!((cloud.calls("provision"), cloud.recorded()), (1, 1));
    // Another process knows the machine by its record.
    assert!(refused(&cloud.counting(&clock, daily)).contains("3600 s of the 4200"));

    clock.advance(Duration::from_secs(900));
    stop.cancel();
    // The command that provisions may have been stopped before it ended.
    let _ = running.await.unwrap();
    // It took 900 s, which leaves too little for another whole lease, now and after a restart.
    for manager in [manager, cloud.counting(&clock, daily)] {
        assert!(
            refused(&manager).contains("900 s of the 4200"),
            "{}",
            refused(&manager)
        );
        manager.check_spend(LEASE - Duration::from_secs(300)).unwrap();
    }
    clock.advance(Duration::from_secs(86_400));
    cloud.counting(&clock, daily).check_spend(LEASE).unwrap();
    let file = cloud.records().join("machine-time.jsonl");
    assert_eq!(
        std::fs::read_to_string(file).unwrap(),
        "",
        "lines older than a day go"
    );
}

/// The miner is killed at every point of a machine's life, and the next process takes over: nothing is left, and
/// nothing is provisioned twice.
#[tokio::test]
async fn a_kill_at_every_point_leaves_no_machine() {
    for point in [
        "before the command",
        "while it runs",
        "while its executor works",
        "while it is released",
    ] {
        let (cloud, clock) = (Cloud::new(), TestClock::default());
        let (order, stop) = (order(), CancellationToken::new());
        let killed = cloud.counting(&clock, None);
        match point {
            "before the command" => {
                drop(killed.records.write(Record::new(&order, clock.now())).unwrap());
            }
            "while it runs" => {
                let held = cloud.manager(
                    &format!("echo provision >> calls && {MAKE}; touch up; exec tail -f /dev/null"),
                    REMOVE,
                );
                let running = spawn(&held, &order, &stop);
                until(cloud.has("up")).await;
                running.abort();
                running.await.unwrap_err();
            }
            _ => {
                let running = spawn(&killed, &order, &stop);
                until(|| !cloud.machines().is_empty()).await;
                if point == "while it is released" {
                    std::fs::write(cloud.0.path().join("broken"), "").unwrap();
                    stop.cancel();
                    until(|| cloud.calls("release") > 0).await;
                }
                running.abort();
                running.await.unwrap_err();
            }
        }
        assert_eq!(cloud.recorded(), 1, "{point}");
        let _ = std::fs::remove_file(cloud.0.path().join("broken"));
        let next = cloud.counting(&clock, None);
        #[expect(clippy::disallowed_methods, reason = "a test waits for the task itself")]
        let reclaiming = tokio::spawn(next.reclaim(BTreeSet::new()));
        // The command of the killed process may take a moment to be gone.
        until(|| {
            clock.advance(Duration::from_secs(1));
            reclaiming.is_finished()
        })
        .await;
        reclaiming.await.unwrap();
        assert_eq!((cloud.machines().len(), cloud.recorded()), (0, 0), "{point}");
        let provisioned = usize::from(point != "before the command");
        assert_eq!(cloud.calls("provision"), provisioned, "{point}");
        assert!(cloud.calls("release") >= 1, "{point}");
    }
}
