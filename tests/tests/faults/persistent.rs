//! A persistent executor in a whole subnet: its operator enrolls it, and it runs users' jobs.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of these helpers is the test's failure, on its line"
)]

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use muster_testbed::wait_for;
use muster_tests::{IMAGES_OF_TESTS, Output, RunningSubnet, free_address, muster, run, shell_image};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A persistent executor's process; dropping it asks it to stop.
struct PersistentExecutor(Child);

impl PersistentExecutor {
    fn start(config: &Path, log: &Path) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let child = Command::new(muster().unwrap())
            .args(["executor", "--persistent", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), signal).unwrap();
    }

    fn wait(&mut self) -> Option<i32> {
        let child = &mut self.0;
        let ended = wait_for("the end of the executor", || anyhow::Ok(child.try_wait()?));
        ended.unwrap().code()
    }
}

impl Drop for PersistentExecutor {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::SIGTERM);
            let _ = self.0.wait();
        }
    }
}

/// A subnet whose miner starts no executors of its own, and one that stands enrolled with it and does not run yet.
struct Enrolled {
    subnet: RunningSubnet,
    config: PathBuf,
    work_dir: PathBuf,
}

impl Enrolled {
    fn new(capacity: u32) -> Self {
        let free = free_address().unwrap();
        // None of the miner's own: whatever runs, runs on the persistent one.
        let arguments = ["--executors", "0", "--persistent", &free.to_string()];
        let subnet = RunningSubnet::start_with(&arguments).unwrap();
        let folder = subnet.folder();
        let config = folder.join("persistent-executor.toml");
        let (work_dir, membership) = (folder.join("persistent-work"), folder.join("membership.json"));
        let text = format!(
            "work_dir = {work_dir:?}\nstop_grace_s = 1\n[standing]\nmembership = {membership:?}\ncapacity = {capacity}\n{IMAGES_OF_TESTS}"
        );
        std::fs::write(&config, text).unwrap();
        let made = Self {
            subnet,
            config,
            work_dir,
        };
        let token = made.miner(&["--enrol", "--capacity", &capacity.to_string()]);
        let token = token.stdout.trim().to_owned();
        assert!(token.starts_with("muster-enrol-1/"), "{token}");
        let enrolled = made.enrol(&token);
        assert_eq!(enrolled.code, Some(0), "{enrolled:?}");
        assert_ne!(
            made.enrol(&token).code,
            Some(0),
            "a membership is never written over"
        );
        made
    }

    fn miner(&self, args: &[&str]) -> Output {
        let config = self.subnet.folder().join("config/miner.toml");
        run(Command::new(muster().unwrap())
            .args(["miner", "--config"])
            .arg(config)
            .args(args))
        .unwrap()
    }

    fn enrol(&self, token: &str) -> Output {
        run(Command::new(muster().unwrap())
            .args(["executor", "--config"])
            .arg(&self.config)
            .args(["--name", "box-1", "--enrol", token]))
        .unwrap()
    }

    fn start(&self) -> PersistentExecutor {
        PersistentExecutor::start(&self.config, &self.log())
    }

    fn log(&self) -> PathBuf {
        self.subnet.folder().join("persistent.log")
    }
}

#[test]
fn a_standing_executor_runs_jobs_one_after_another_and_its_next_process_goes_on_with_one() {
    let enrolled = Enrolled::new(1);
    let (subnet, work_dir) = (&enrolled.subnet, &enrolled.work_dir);
    let listed = enrolled.miner(&["--executors"]).stdout;
    assert!(listed.contains("box-1"), "{listed}");

    let mut executor = enrolled.start();
    let submit = |args: &[&str]| {
        let all = [&["job", "run", subnet.demo_image(), "--detach", "--"], args].concat();
        subnet.muster(&all).unwrap().stdout.trim().to_owned()
    };
    // The miner announces an executor that comes or goes in its own time; a job may be a little too early for that.
    let job_that_ends = |status: &str| {
        wait_for(&format!("a job that is {status}"), || {
            let id = submit(&["probe", "print", "0"]);
            let job = wait_for("its end", || {
                let job = subnet.job(&id)?;
                let history = job["status_history"].to_string();
                let over = ["completed", "rejected", "failed"]
                    .iter()
                    .any(|word| history.contains(word));
                anyhow::Ok(over.then_some(job))
            })?;
            anyhow::Ok(job["status_history"].to_string().contains(status).then_some(job))
        })
        .unwrap()
    };
    let taken_job = || job_that_ends("completed");
    assert_eq!(taken_job()["stdout"], "end\n");
    for _ in 0..2 {
        let id = submit(&["probe", "print", "0"]);
        let job = subnet.wait_for_status(&id, "completed").unwrap();
        assert_eq!(job["stdout"], "end\n");
    }

    // kill -9 in the middle of a job.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let shell = runtime.block_on(shell_image("")).unwrap();
    let id = subnet.begin_held(shell, &[]).unwrap();
    // Meanwhile the operator of the validator sees the load of the executor's machine, as the miner reports it.
    wait_for("the load of the machine", || {
        let listed = subnet.validator_page("/v0/miners")?;
        let machine = &listed["miners"][0]["claims"]["machines"][0];
        let is_told = machine["name"] == "box-1" && machine["memory_total"].as_u64() > Some(0);
        anyhow::Ok(is_told.then_some(()))
    })
    .unwrap();
    executor.signal(Signal::SIGKILL);
    executor.wait();
    // Its next process takes the job over; asked to stop, it leaves the job to the one after it.
    let mut executor = enrolled.start();
    wait_for("a job that is taken over", || {
        let log = std::fs::read_to_string(enrolled.log())?;
        anyhow::Ok(log.contains("the miner has taken the job back").then_some(()))
    })
    .unwrap();
    executor.signal(Signal::SIGTERM);
    assert_eq!(executor.wait(), Some(0));
    let mut executor = enrolled.start();
    let (job, _) = subnet.end_held(&id).unwrap();
    assert_eq!(
        job["status_history"].to_string().matches("volumes_ready").count(),
        1,
        "{job}"
    );

    // Nothing is left of it.
    wait_for("an empty work folder", || {
        let left = std::fs::read_dir(work_dir)?.count();
        anyhow::Ok((left == 0).then_some(()))
    })
    .unwrap();
    // An executor that is drained takes no more jobs, and so does a miner.
    let drain = |role: &str, config: &Path, more: &[&str]| {
        let drained = run(Command::new(muster().unwrap())
            .args([role, "drain", "--config"])
            .arg(config)
            .args(more))
        .unwrap();
        assert_eq!(drained.code, Some(0), "{drained:?}");
        drained.stdout
    };
    let told = drain("executor", &enrolled.config, &[]);
    assert!(told.contains("the executor is empty"), "{told}");
    job_that_ends("rejected");
    drain("executor", &enrolled.config, &["--undo"]);
    assert_eq!(taken_job()["stdout"], "end\n");
    let miner_config = subnet.folder().join("config/miner.toml");
    let told = drain("miner", &miner_config, &[]);
    assert!(told.contains("the miner is empty"), "{told}");
    drain("miner", &miner_config, &["--undo"]);
    executor.signal(Signal::SIGTERM);
    assert_eq!(executor.wait(), Some(0));

    // Struck off, it is turned away.
    let fingerprint = listed.split_whitespace().next().unwrap().to_owned();
    let struck = enrolled.miner(&["--revoke", &fingerprint[..16]]);
    assert!(struck.stdout.contains("box-1"), "{struck:?}");
    assert_eq!(enrolled.miner(&["--executors"]).stdout, "");
}

#[test]
fn a_standing_executor_serves_sealed_sessions_beside_jobs_and_the_next_one_takes_over_from_a_killed_one() {
    let enrolled = Enrolled::new(2);
    let subnet = &enrolled.subnet;
    let logs = || {
        let own = std::fs::read_to_string(enrolled.log()).unwrap_or_default();
        format!(
            "{}\n---\n{}\n---\n{own}",
            subnet.log("validator"),
            subnet.log("miner")
        )
    };
    let mut executor = enrolled.start();
    let ask = ["chat", "parrot", "-m", "one two three", "--max-tokens", "5"];
    let proven = || {
        // A session may be wanted a little before the miner has announced the executor.
        let answered = wait_for("a proven answer", || {
            let said = subnet.muster(&ask)?;
            anyhow::Ok((said.code == Some(0)).then_some(said))
        });
        let said = answered.unwrap();
        assert_eq!(
            (said.stdout.as_str(), said.stderr.lines().last()),
            ("one two three one two \n", Some("[proven]")),
            "{said:?}"
        );
    };
    let sessions = || -> Value {
        let listed = subnet.muster(&["session", "ls", "--json"]).unwrap();
        serde_json::from_str(&listed.stdout).unwrap()
    };
    proven();
    // The session keeps one of its places, and jobs of users have the other.
    let submitted = subnet.muster(&[
        "job",
        "run",
        subnet.demo_image(),
        "--detach",
        "--",
        "probe",
        "print",
        "0",
    ]);
    let id = submitted.unwrap().stdout.trim().to_owned();
    let job = subnet.wait_for_status(&id, "completed").unwrap();
    assert_eq!(job["stdout"], "end\n");
    proven();
    let seen = sessions();
    let first = seen["sessions"][0].clone();
    assert_eq!(
        (
            &seen["models"][0]["live"],
            &seen["earned"][0]["proven"],
            &seen["earned"][0]["unproven"]
        ),
        (&1.into(), &2.into(), &0.into()),
        "{seen}"
    );

    // kill -9 in the middle of an answer.
    let heard = subnet.folder().join("heard");
    let mut asking = Command::new(muster().unwrap())
        .args(["chat", "parrot", "--dir"])
        .arg(subnet.folder())
        .args(["-m", "for ever", "--max-tokens", "1000000"])
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&heard).unwrap())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the first words", || {
        let said = std::fs::read_to_string(&heard)?;
        anyhow::Ok(said.contains("for ever for ever").then_some(()))
    })
    .unwrap();
    executor.signal(Signal::SIGKILL);
    executor.wait();
    wait_for("the end of the answer", || anyhow::Ok(asking.try_wait()?)).unwrap();
    let ended = asking.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && told.contains("the answer broke off"),
        "{told}\n{}",
        logs()
    );

    // Its next process serves the next session, and what that signs is believed.
    let mut executor = enrolled.start();
    proven();
    let seen = sessions();
    let second = &seen["sessions"][0];
    assert_ne!(
        (&second["session"], &second["job"]),
        (&first["session"], &first["job"]),
        "{seen}"
    );
    assert_eq!(second["miner"], first["miner"], "{seen}");
    executor.signal(Signal::SIGTERM);
    assert_eq!(executor.wait(), Some(0), "{}", logs());
}
