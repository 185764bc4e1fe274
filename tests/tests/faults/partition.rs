//! Partitions that outlast the patience of somebody: the job goes to another miner, and one attempt of it is paid.
//!
//! Partitions that last less are cells of the fault matrix: the job goes on where it was.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::process::Command;

use muster_miner::lease_table::LeaseStatus;
use muster_miner::store::Store;
use muster_process::{Clock as _, SystemClock};
use muster_protocol::wire::decode;
use muster_protocol::{AttemptId, JobId, JobStatus, Receipt, ReceiptPayload};
use muster_testbed::{free_address, wait_for};
use muster_tests::{
    Absences, BUSYBOX, Layout, Parts, Relay, Role, SpareMiner, User, Weather, held_limit_s, release, run,
    shell_image, while_held,
};
use tokio::runtime::Runtime;

/// Short, so that a test can outlast them, and in the order of the real ones. Between the first two an executor ends
/// its container.
const ABSENCES: Absences = Absences {
    orphan_s: 1,
    miner_s: 6,
    validator_s: 7,
};

/// The two sides of a miner that can lose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Validator,
    Executors,
}

/// The relays before one miner.
struct Relays {
    validator: Relay,
    executors: Relay,
}

/// A subnet of two miners with one job in it.
struct Subnet {
    runtime: Runtime,
    parts: Parts,
    relays: [Relays; 2],
    user: User,
    image: &'static str,
    job: JobId,
}

impl Subnet {
    /// Starts a job whose program goes on until it is released, and waits until it runs.
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        muster_process::tls::install_provider();
        let ports = [(); 2].map(|()| free_address().unwrap());
        let relays = ports.map(|port| Relays {
            validator: runtime.block_on(Relay::start(port)).unwrap(),
            executors: runtime.block_on(Relay::start(port)).unwrap(),
        });
        let layout = Layout {
            executors: 1,
            miner_port: Some(ports[0]),
            miner_announces: Some(relays[0].validator.address()),
            executors_dial: Some(relays[0].executors.address()),
            spare_miner: Some(SpareMiner {
                port: ports[1],
                announces: relays[1].validator.address(),
                executors_dial: relays[1].executors.address(),
            }),
            absences: Some(ABSENCES),
            ..Layout::default()
        };
        let image = runtime.block_on(shell_image("")).unwrap();
        let parts = Parts::start(&layout).unwrap();
        let key = parts.keys().user.clone();
        let user = runtime
            .block_on(User::login(parts.address(Role::Facilitator), key))
            .unwrap();
        let script = format!(
            "{BUSYBOX} cat /proc/sys/kernel/random/uuid; {} echo over",
            while_held("")
        );
        let job = parts.shell_job(image, &script, held_limit_s()).unwrap();
        let job = runtime
            .block_on(user.submit(&job, SystemClock::default().now()))
            .unwrap();
        let this = Self {
            runtime,
            parts,
            relays,
            user,
            image,
            job,
        };
        let first = AttemptId::from_uuid(*job.as_uuid());
        this.wait_for("the first container", || !this.containers(first).is_empty());
        this
    }

    fn wait_for(&self, what: &str, holds: impl Fn() -> bool) {
        wait_for(what, || anyhow::Ok(holds().then_some(()))).unwrap();
    }

    /// The running containers of an attempt.
    fn containers(&self, attempt: AttemptId) -> String {
        let label = format!("label=muster.attempt={attempt}");
        let mut docker = Command::new("docker");
        docker.args(["ps", "--quiet", "--filter", &label]);
        run(&mut docker).unwrap().stdout
    }

    /// Cuts one side of the miner that has the job, until the job has a second attempt and the program of the first one
    /// has ended.
    fn cut_until_retried(&self, side: Side) -> Vec<(AttemptId, Role)> {
        let first = self.parts.attempts_of(self.job).unwrap();
        assert_eq!(first.len(), 1, "{first:?}");
        let (first, miner) = first[0];
        let relays = match miner {
            Role::SpareMiner => &self.relays[1],
            Role::Miner | Role::Facilitator | Role::Validator => &self.relays[0],
        };
        let relay = match side {
            Side::Validator => &relays.validator,
            Side::Executors => &relays.executors,
        };
        relay.set(Weather::Cut);
        self.wait_for("a second attempt", || {
            self.parts
                .attempts_of(self.job)
                .is_ok_and(|attempts| attempts.len() == 2)
        });
        match side {
            // The executor gave the job up before its miner did, so nothing runs twice at once.
            Side::Executors => assert_eq!(self.containers(first), "", "it was given up"),
            // The miner and its executor have missed nothing: the program goes on, and ends
            // while nobody can be notified.
            Side::Validator => {
                assert_eq!(self.containers(first).lines().count(), 1, "it goes on");
                assert_eq!(release("", &first.to_string()).unwrap(), 1);
                self.wait_for("the end of the first program", || {
                    self.containers(first).is_empty()
                });
                self.wait_for("an end that the miner owes", || {
                    self.lease_status(miner, first) == Some(LeaseStatus::Owed)
                });
            }
        }
        relay.set(Weather::Fair);
        self.parts.attempts_of(self.job).unwrap()
    }

    /// The status of an attempt's lease in its miner's store.
    fn lease_status(&self, miner: Role, attempt: AttemptId) -> Option<LeaseStatus> {
        let read = async { Store::open(self.parts.store(miner)).await?.records().await };
        let records = self.runtime.block_on(read).unwrap();
        records
            .into_iter()
            .find(|record| record.attempt == attempt)
            .map(|record| record.status)
    }

    /// Checks the end: one result, of the second attempt, which alone is paid; both miners agree.
    fn assert_paid_once(self, attempts: &[(AttemptId, Role)]) {
        self.wait_for("the end of the job", || {
            for (attempt, _) in attempts {
                release("", &attempt.to_string()).unwrap();
            }
            let history = self.runtime.block_on(self.user.history(self.job));
            let statuses = history.unwrap_or_default();
            statuses
                .iter()
                .any(|status| JobStatus::from_wire(status).is_terminal())
        });
        let history = self.runtime.block_on(self.user.history(self.job)).unwrap();
        assert_eq!(
            history.last().map(String::as_str),
            Some(JobStatus::Completed.as_str()),
            "{history:?}"
        );
        let [(first, its_miner), (second, other_miner)] = attempts else {
            panic!("{attempts:?}")
        };
        assert_ne!(its_miner, other_miner);
        for (attempt, miner, is_paid) in [(first, its_miner, false), (second, other_miner, true)] {
            self.wait_for("the miner's last receipt", || {
                let is_there = self.score(*miner, *attempt).is_some();
                if !is_there {
                    self.visit_both_miners();
                }
                is_there
            });
            let score = self.score(*miner, *attempt).unwrap();
            assert_eq!(score != "0.000000", is_paid, "{attempt}: {score}");
            self.wait_for("the end of the containers", || {
                self.containers(*attempt).is_empty()
            });
            self.wait_for("the end of the executors", || {
                self.parts.executors_of(&attempt.to_string()).unwrap().is_empty()
            });
        }
        let left = || {
            std::fs::read_dir(self.parts.work_dir())
                .map(Iterator::count)
                .unwrap_or_default()
        };
        self.wait_for("folders without jobs", || left() == 0);
    }

    /// Has the validator run a job on each miner: it visits a miner that it has given up only with another job, and
    /// then the miner reports what it owes.
    fn visit_both_miners(&self) {
        let job = self
            .parts
            .shell_job(self.image, &format!("{BUSYBOX} sleep 1"), held_limit_s())
            .unwrap();
        let submit = || {
            let submitted = self.user.submit(&job, SystemClock::default().now());
            self.runtime.block_on(submitted).unwrap()
        };
        for id in [submit(), submit()] {
            self.wait_for("the end of another job", || {
                let statuses = self.runtime.block_on(self.user.history(id)).unwrap_or_default();
                statuses
                    .iter()
                    .any(|status| JobStatus::from_wire(status).is_terminal())
            });
        }
    }

    /// The score on the finished receipt that a miner holds for an attempt.
    fn score(&self, miner: Role, attempt: AttemptId) -> Option<String> {
        let read = async {
            let store = Store::open(self.parts.store(miner)).await?;
            store.lines_since(0).await
        };
        let lines = self.runtime.block_on(read).unwrap();
        lines.iter().find_map(|line| {
            let receipt: Receipt = decode(&line.line).unwrap();
            match receipt.payload {
                ReceiptPayload::Finished(finished) if finished.job_uuid == attempt => {
                    Some(finished.score_str)
                }
                ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_) => {
                    None
                }
            }
        })
    }
}

#[test]
fn a_miner_that_has_lost_its_executor_for_long_gives_the_job_back() {
    let subnet = Subnet::start();
    let attempts = subnet.cut_until_retried(Side::Executors);
    subnet.assert_paid_once(&attempts);
}

#[test]
fn a_miner_that_its_validator_has_lost_for_long_is_not_paid_for_what_it_finishes_meanwhile() {
    let subnet = Subnet::start();
    let attempts = subnet.cut_until_retried(Side::Validator);
    subnet.assert_paid_once(&attempts);
}
