//! Jobs that leave checkpoints go on from the last one that was kept, on another miner, and end as if nothing had
//! happened.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::process::Command;
use std::time::Duration;

use muster_process::{Clock as _, SystemClock};
use muster_protocol::job::{CheckpointTerms, JobTerms, ResumeSource, SaveSignal};
use muster_protocol::rest::{CreateJob, JobCheckpointsView};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{AttemptId, JobId, JobStatus};
use muster_tests::{
    Absences, BUSYBOX, Layout, Parts, Role, SpareMiner, User, free_address, muster, run, shell_image,
    wait_for,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// No condition takes this long unless it never comes.
const PATIENCE: Duration = Duration::from_secs(150);

/// Short, so that a test can outlast them, and in the order of the real ones.
const ABSENCES: Absences = Absences {
    orphan_s: 2,
    miner_s: 3,
    validator_s: 4,
};

/// The steps that a program counts, and how many of them lie between two checkpoints.
const STEPS: u64 = 40;
const EVERY: u64 = 4;

/// A program that computes a number in steps and saves its state now and then. `at_step` is a command that it runs
/// after each step.
fn counting_script(at_step: &str) -> String {
    let sleep = format!("{BUSYBOX} sleep 0.3");
    let save = format!(
        "echo \"$i $s\" > $MUSTER_CHECKPOINT_DIR/step-$i.tmp; \
         {BUSYBOX} mv $MUSTER_CHECKPOINT_DIR/step-$i.tmp $MUSTER_CHECKPOINT_DIR/step-$i; \
         echo \"{{\\\"step\\\":$i,\\\"steps\\\":{STEPS},\\\"checkpoint\\\":\\\"step-$i\\\"}}\" >> $MUSTER_PROGRESS"
    );
    format!(
        "i=0; s=1; if [ -n \"$MUSTER_RESUME\" ]; then read i s < $MUSTER_RESUME; fi; \
         echo attempt $MUSTER_ATTEMPT from $i; \
         while [ $i -lt {STEPS} ]; do {sleep}; i=$((i+1)); s=$(( (s * 1103515245 + 12345) % 2147483648 )); \
         if [ $((i % {EVERY})) -eq 0 ]; then {save}; fi; {at_step}; done; \
         echo final $s; echo $s > /artifacts/result"
    )
}

/// The number that an undisturbed run computes.
fn undisturbed_result() -> u64 {
    (0..STEPS).fold(1, |state: u64, _| {
        (state * 1_103_515_245 + 12_345) % 2_147_483_648
    })
}

struct Subnet {
    runtime: Runtime,
    parts: Parts,
    user: User,
    image: &'static str,
    job: JobId,
}

impl Subnet {
    /// Starts a subnet of two miners, and a job of this script with these terms.
    fn start(script: &str, checkpoints: CheckpointTerms) -> Self {
        let runtime = Runtime::new().unwrap();
        muster_process::tls::install_provider();
        let spare = free_address().unwrap();
        let layout = Layout {
            executors: 1,
            spare_miner: Some(SpareMiner {
                port: spare,
                announces: spare,
                executors_dial: spare,
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
        let mut subnet = Self {
            runtime,
            parts,
            user,
            image,
            job: JobId::from_uuid(uuid::Uuid::nil()),
        };
        subnet.submit(script, checkpoints);
        subnet
    }

    /// Submits another job, which is the one that is meant from then on.
    fn submit(&mut self, script: &str, checkpoints: CheckpointTerms) {
        let mut job: CreateJob = serde_json::from_value(json!({
            "target_validator_hotkey": self.parts.keys().validator.hotkey().to_string(),
            "executor_class": "always_on.test",
            "docker_image": self.image,
            "args": ["-c", script],
            "artifacts_dir": "/artifacts",
            "download_time_limit": 30,
            "execution_time_limit": 120,
            "streaming_start_time_limit": 0,
            "upload_time_limit": 30,
        }))
        .unwrap();
        let now = SystemClock::default().now();
        let terms = JobTerms {
            checkpoints: Some(checkpoints),
            ..JobTerms::default()
        };
        let digest = job.signed_fields().digest(now.micros() * 1_000);
        let signature = muster_identity::sign_terms(&self.parts.keys().user, &terms, &digest);
        job.muster = Some(Box::new(JobExtension {
            signature: Some(signature),
            terms: Some(terms),
            ..JobExtension::default()
        }));
        self.job = self.runtime.block_on(self.user.submit(&job, now)).unwrap();
    }

    fn wait_for<T>(&self, what: &str, holds: impl Fn() -> Option<T>) -> T {
        wait_for(what, PATIENCE, || Ok(holds())).unwrap_or_else(|error| {
            let job = self.runtime.block_on(self.user.job(self.job));
            panic!("{error}\n{job:#?}\n{}", self.parts.logs())
        })
    }

    /// Waits until the job keeps a checkpoint of this ordinal or a newer one.
    fn wait_for_checkpoint(&self, ordinal: u32) -> JobCheckpointsView {
        self.wait_for("a checkpoint", || {
            let view = self.runtime.block_on(self.user.checkpoints(self.job)).ok()?;
            let newest = view.checkpoints.last()?.ordinal;
            (newest >= ordinal).then_some(view)
        })
    }

    /// Loses the machine and the miner of the newest attempt for good. Returns the miner.
    fn lose_machine(&mut self) -> Role {
        let (attempt, miner) = self.parts.attempts_of(self.job).unwrap().pop().unwrap();
        self.parts.kill(miner).unwrap();
        self.parts.kill_executor(&attempt.to_string()).unwrap();
        let docker = |arguments: &[&str]| run(Command::new("docker").args(arguments)).unwrap();
        let label = format!("label=muster.attempt={attempt}");
        let containers = docker(&["ps", "--quiet", "--filter", &label]);
        let killed = docker(&["kill", containers.stdout.trim()]);
        assert_eq!(killed.code, Some(0), "{killed:?}");
        miner
    }

    /// The job's last status, once it has ended.
    fn end(&self) -> (JobStatus, Value) {
        self.wait_for("the end of the job", || {
            let view = self.runtime.block_on(self.user.job(self.job)).ok()?;
            let last = view["status_history"].as_array()?.last()?.clone();
            let status = JobStatus::from_wire(last["status"].as_str()?);
            status.is_terminal().then(|| (status, last["metadata"].clone()))
        })
    }

    /// The microseconds for which the validator's receipt pays an attempt, once there is one.
    fn paid_us(&self, attempt: AttemptId) -> u64 {
        let pool = self
            .runtime
            .block_on(muster_store::open(self.parts.store(Role::Validator)))
            .unwrap();
        self.wait_for("a receipt", || {
            let row = sqlx::query_as(
                "SELECT payload FROM receipts WHERE attempt_id = $1 AND kind = 'JobFinishedReceipt'",
            );
            let row = row.bind(attempt.to_string()).fetch_optional(&pool);
            let (payload,): (String,) = self.runtime.block_on(row).unwrap()?;
            let payload: Value = serde_json::from_str(&payload).unwrap();
            payload["time_took_us"].as_u64()
        })
    }

    /// Runs `muster job checkpoints` of the job with these arguments.
    fn list_checkpoints(&self, arguments: &[&str]) -> String {
        let key = self.runtime.block_on(self.user.create_key("test")).unwrap();
        let url = format!("http://{}", self.parts.address(Role::Facilitator));
        let mut command = Command::new(muster().unwrap());
        command
            .args(["job", "checkpoints", &self.job.to_string(), "--facilitator", &url])
            .args(arguments)
            .env("MUSTER_API_KEY", key)
            .current_dir(self.parts.folder());
        let ran = run(&mut command).unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    }

    /// Waits for a good end, and compares the result with that of an undisturbed run. Returns what the last attempt
    /// printed.
    fn assert_undisturbed(&self) -> String {
        let (status, metadata) = self.end();
        assert_eq!(
            status,
            JobStatus::Completed,
            "{metadata:#}\n{}",
            self.parts.logs()
        );
        let response = &metadata["miner_response"];
        let printed = response["docker_process_stdout"].as_str().unwrap().to_owned();
        let result = undisturbed_result();
        assert!(printed.ends_with(&format!("final {result}\n")), "{printed}");
        let artifact = response["artifacts"]["/artifacts/result"].as_str().unwrap();
        let decoded = base64_of(format!("{result}\n").as_bytes());
        assert_eq!(artifact, decoded);
        printed
    }

    fn attempts(&self) -> Vec<(AttemptId, Role)> {
        self.parts.attempts_of(self.job).unwrap()
    }
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn a_job_whose_machine_and_miner_are_lost_goes_on_at_the_other_miner_from_its_last_checkpoint() {
    let mut subnet = Subnet::start(&counting_script(":"), CheckpointTerms::default());
    let kept = subnet.wait_for_checkpoint(2);
    let step = kept.checkpoints.last().unwrap().step.unwrap();
    let lost = subnet.lose_machine();
    let printed = subnet.assert_undisturbed();
    let first = printed.lines().next().unwrap();
    let begun: u64 = first.rsplit_once(" from ").unwrap().1.parse().unwrap();
    assert!(
        begun >= step && begun < STEPS,
        "{begun} of {STEPS}, kept at {step}"
    );
    let attempts = subnet.attempts();
    let last = attempts[attempts.len() - 1];
    assert_ne!(last.1, lost);
    // The three newest ones, numbered through both attempts, and the one that the last attempt began from, until
    // another attempt has gone on.
    let after = subnet
        .runtime
        .block_on(subnet.user.checkpoints(subnet.job))
        .unwrap();
    let (own, earlier): (Vec<_>, Vec<_>) = after.checkpoints.iter().partition(|one| one.attempt == last.0);
    assert!((1..=3).contains(&own.len()), "{after:?}");
    let are_the_newest = own.len() + earlier.len() <= 3;
    assert!(are_the_newest || earlier.len() == 1, "{after:?}");
    assert!(earlier.iter().all(|one| one.step <= Some(begun)), "{after:?}");
    // The lost attempt is paid up to the checkpoint that the other one began from, and no further.
    let until_used = subnet.paid_us(attempts[0].0);
    let until_end = subnet.paid_us(last.0);
    let bounds = 1_000_000..=u64::try_from(PATIENCE.as_micros()).unwrap();
    assert!(
        bounds.contains(&until_used) && until_end > 0,
        "{until_used} {until_end}"
    );
}

#[test]
fn a_miner_that_is_drained_has_the_program_saved_and_the_job_goes_on_at_the_other_miner() {
    let leave = "trap 'echo \"$i $s\" > $MUSTER_CHECKPOINT_DIR/left-$i; exit 85' USR1; ";
    let terms = CheckpointTerms {
        signal: SaveSignal::Usr1,
        ..CheckpointTerms::default()
    };
    let subnet = Subnet::start(&format!("{leave}{}", counting_script(":")), terms);
    let kept = subnet.wait_for_checkpoint(1);
    let named = kept.checkpoints.last().unwrap().step.unwrap();
    let (first, left) = subnet.attempts().pop().unwrap();
    let mut drain = Command::new(muster().unwrap());
    drain
        .args(["miner", "drain", "--config"])
        .arg(subnet.parts.config_file(left));
    let drained = run(&mut drain).unwrap();
    assert!(drained.stdout.contains("the miner is empty"), "{drained:?}");
    let printed = subnet.assert_undisturbed();
    let begun = printed.lines().next().unwrap();
    let step: u64 = begun.rsplit_once(" from ").unwrap().1.parse().unwrap();
    assert!(begun.starts_with("attempt 2 from ") && step >= named, "{printed}");
    let attempts = subnet.attempts();
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert_ne!(attempts[1].1, left, "the job went to the other miner");
    assert!(subnet.paid_us(first) > 0, "the program ran");
}

#[test]
fn a_program_that_ends_with_85_is_run_again_and_no_failure_is_told() {
    // It leaves after every ten steps, having saved.
    let leave = format!(
        "if [ $((i % 10)) -eq 0 ] && [ $i -lt {STEPS} ]; then echo \"$i $s\" > $MUSTER_CHECKPOINT_DIR/left-$i; exit 85; fi"
    );
    let mut subnet = Subnet::start(&counting_script(&leave), CheckpointTerms::default());
    let printed = subnet.assert_undisturbed();
    assert!(printed.starts_with("attempt 4 from 30\n"), "{printed}");
    assert_eq!(subnet.attempts().len(), 4);
    // Its user lists its checkpoints and fetches one.
    let kept = subnet.wait_for_checkpoint(1);
    let source = kept.checkpoints.last().unwrap();
    let listed: Value = serde_json::from_str(&subnet.list_checkpoints(&["--json"])).unwrap();
    assert_eq!(
        listed[kept.checkpoints.len() - 1]["ordinal"],
        source.ordinal,
        "{listed}"
    );
    let folder = subnet.parts.folder().join("fetched");
    let ordinal = source.ordinal.to_string();
    let told = subnet.list_checkpoints(&["--get", &ordinal, "--save", folder.to_str().unwrap()]);
    let fetched = std::fs::read_to_string(folder.join(&source.name)).unwrap();
    assert!(told.contains(&source.name), "{told}");
    let (step, state) = fetched.trim().split_once(' ').unwrap();
    assert!(
        source.name.ends_with(&format!("-{step}")) && !state.is_empty(),
        "{fetched}"
    );
    // Another job of the user begins from one of its checkpoints.
    let resume_from = Some(ResumeSource {
        job: subnet.job,
        ordinal: source.ordinal,
    });
    let terms = CheckpointTerms {
        resume_from,
        ..CheckpointTerms::default()
    };
    subnet.submit(&counting_script(":"), terms);
    let printed = subnet.assert_undisturbed();
    let begun = printed.lines().next().unwrap();
    assert!(
        begun.starts_with("attempt 1 from ") && begun != "attempt 1 from 0",
        "{printed}"
    );
}

#[test]
fn a_program_that_runs_out_of_memory_is_run_again_with_half_its_batch_three_times() {
    let script =
        "echo scale $MUSTER_BATCH_SCALE; echo 'torch.OutOfMemoryError: CUDA out of memory' >&2; exit 1";
    let subnet = Subnet::start(script, CheckpointTerms::default());
    let (status, metadata) = subnet.end();
    assert_eq!(status, JobStatus::Failed, "{metadata:#}");
    let printed = metadata["job_failure_details"]["docker_process_stdout"]
        .as_str()
        .unwrap();
    assert_eq!(printed, "scale 0.125\n");
    assert_eq!(subnet.attempts().len(), 4);
}
