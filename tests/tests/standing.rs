//! A standing executor in a whole subnet: enrolled by its operator's own hands, it runs what users send.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers cannot do is the test's failure, on its line"
)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muster_tests::{RunningSubnet, muster, run, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PATIENCE: Duration = Duration::from_secs(120);

/// A standing executor's process; dropping it asks it to stop.
struct Standing(Child);

impl Standing {
    fn start(config: &Path, log: &Path) -> Self {
        let log = std::fs::File::create(log).unwrap();
        let child = Command::new(muster().unwrap())
            .args(["executor", "--standing", "--config"])
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
        let ended = wait_for("the end of the executor", PATIENCE, || Ok(child.try_wait()?));
        ended.unwrap().code()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::SIGTERM);
            let _ = self.0.wait();
        }
    }
}

#[test]
fn a_standing_executor_runs_jobs_one_after_another_and_a_killed_one_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // None of the miner's own: whatever runs, runs on the standing one.
    let subnet = RunningSubnet::start_with(&["--executors", "0", "--standing", &free.to_string()]).unwrap();
    let folder = subnet.folder();
    let config = folder.join("standing-executor.toml");
    let (work_dir, membership) = (folder.join("standing-work"), folder.join("membership.json"));
    let text =
        format!("work_dir = {work_dir:?}\nstop_grace_s = 1\n[standing]\nmembership = {membership:?}\n");
    std::fs::write(&config, text).unwrap();

    let miner_config = folder.join("config/miner.toml");
    let miner_command = |args: &[&str]| {
        run(Command::new(muster().unwrap())
            .args(["miner", "--config"])
            .arg(&miner_config)
            .args(args))
        .unwrap()
    };
    let token = miner_command(&["--enrol"]).stdout.trim().to_owned();
    assert!(token.starts_with("muster-enrol-1/"), "{token}");
    let enrol = |token: &str| {
        run(Command::new(muster().unwrap())
            .args(["executor", "--config"])
            .arg(&config)
            .args(["--name", "box-1", "--enrol", token]))
        .unwrap()
    };
    let enrolled = enrol(&token);
    assert_eq!(enrolled.code, Some(0), "{enrolled:?}");
    assert_ne!(enrol(&token).code, Some(0), "a membership is never written over");
    let listed = miner_command(&["--executors"]).stdout;
    assert!(listed.contains("box-1"), "{listed}");

    let mut executor = Standing::start(&config, &folder.join("standing.log"));
    let submit = |args: &[&str]| {
        let all = [&["job", "run", subnet.demo_image(), "--detach", "--"], args].concat();
        subnet.muster(&all).unwrap().stdout.trim().to_owned()
    };
    // The miner announces the executor once it is there; a job may be a little too early for that.
    let first = wait_for("a job that is taken", PATIENCE, || {
        let id = submit(&["probe", "print", "0"]);
        let job = wait_for("its end", PATIENCE, || {
            let job = subnet.job(&id)?;
            let history = job["status_history"].to_string();
            let over = ["completed", "rejected", "failed"]
                .iter()
                .any(|word| history.contains(word));
            Ok(over.then_some(job))
        })?;
        Ok(job["status_history"]
            .to_string()
            .contains("completed")
            .then_some(job))
    })
    .unwrap();
    assert_eq!(first["stdout"], "end\n");
    for _ in 0..2 {
        let id = submit(&["probe", "print", "0"]);
        let job = subnet.wait_for_status(&id, "completed", PATIENCE).unwrap();
        assert_eq!(job["stdout"], "end\n");
    }

    // kill -9 in the middle of a job.
    let id = submit(&["probe", "sleep", "3600"]);
    subnet.wait_for_status(&id, "volumes_ready", PATIENCE).unwrap();
    executor.signal(Signal::SIGKILL);
    executor.wait();
    let job = subnet.wait_for_status(&id, "horde_failed", PATIENCE).unwrap();
    assert!(
        job["status_history"]
            .to_string()
            .contains("executor_disconnected"),
        "{job}"
    );

    // Its next process removes what it left, and works; told to stop, it leaves well.
    let mut executor = Standing::start(&config, &folder.join("standing-2.log"));
    wait_for("an empty work folder", PATIENCE, || {
        let left = std::fs::read_dir(&work_dir)?.count();
        Ok((left == 0).then_some(()))
    })
    .unwrap();
    executor.signal(Signal::SIGTERM);
    assert_eq!(executor.wait(), Some(0));

    // Struck off, it is turned away.
    let fingerprint = listed.split_whitespace().next().unwrap().to_owned();
    let struck = miner_command(&["--revoke", &fingerprint[..16]]);
    assert!(struck.stdout.contains("box-1"), "{struck:?}");
    assert_eq!(miner_command(&["--executors"]).stdout, "");
}
