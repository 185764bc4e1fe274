//! A program that counts, in the shell.

use std::process::Command;

use muster_protocol::JobStatus;
use muster_protocol::job::{CheckpointTerms, ResumeSource, SaveSignal};
use muster_testbed::patience;
use muster_tests::{BUSYBOX, Layout, held_limit_s, muster, run, shell_image, while_held};
use serde_json::Value;

use super::subnet::{Program, Subnet};

/// The steps that a program counts, and how many of them lie between two checkpoints.
const STEPS: u64 = 40;
const EVERY: u64 = 4;
/// The step after which a program that is held waits for its release.
const HELD_AT: u64 = STEPS - EVERY;

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

/// As [`counting_script`], and each run goes on until it is released.
fn held_script() -> String {
    counting_script(&format!("if [ $i -eq {HELD_AT} ]; then {} fi", while_held("")))
}

/// The program of this script.
fn program(script: &str) -> Program {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    Program {
        image: runtime.block_on(shell_image("")).unwrap(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
        limit_s: held_limit_s(),
        metrics: vec![],
        held: false,
    }
}

/// Waits for a good end, and compares the result with that of an undisturbed run. Returns what the last attempt
/// printed.
fn assert_undisturbed(subnet: &Subnet) -> String {
    let response = subnet.response();
    let printed = response["docker_process_stdout"].as_str().unwrap().to_owned();
    let result = undisturbed_result();
    assert!(printed.ends_with(&format!("final {result}\n")), "{printed}");
    let artifact = response["artifacts"]["/artifacts/result"].as_str().unwrap();
    assert_eq!(artifact, base64_of(format!("{result}\n").as_bytes()));
    printed
}

/// A subnet with a job of this script.
fn start(script: &str, checkpoints: CheckpointTerms) -> Subnet {
    Subnet::start(Layout::default(), &program(script), checkpoints)
}

/// A subnet with a job of this script, which is held.
fn start_held(script: &str, checkpoints: CheckpointTerms) -> Subnet {
    let held = Program {
        held: true,
        ..program(script)
    };
    Subnet::start(Layout::default(), &held, checkpoints)
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn a_job_whose_machine_and_miner_are_lost_goes_on_at_the_other_miner_from_its_last_checkpoint() {
    let mut subnet = start_held(&held_script(), CheckpointTerms::default());
    let kept = subnet.wait_for_checkpoint(2);
    let step = kept.checkpoints.last().unwrap().step.unwrap();
    let lost = subnet.lose_machine();
    let printed = assert_undisturbed(&subnet);
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
    let bounds = 1_000_000..=u64::try_from(patience().as_micros()).unwrap();
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
    let subnet = start_held(&format!("{leave}{}", held_script()), terms);
    let kept = subnet.wait_for_checkpoint(1);
    let named = kept.checkpoints.last().unwrap().step.unwrap();
    let (first, left) = subnet.attempts().pop().unwrap();
    let mut drain = Command::new(muster().unwrap());
    drain
        .args(["miner", "drain", "--config"])
        .arg(subnet.parts.config_file(left));
    let drained = run(&mut drain).unwrap();
    assert!(drained.stdout.contains("the miner is empty"), "{drained:?}");
    let printed = assert_undisturbed(&subnet);
    let begun = printed.lines().next().unwrap();
    let step: u64 = begun.rsplit_once(" from ").unwrap().1.parse().unwrap();
    assert!(begun.starts_with("attempt 2 from ") && step >= named, "{printed}");
    let attempts = subnet.attempts();
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert_ne!(attempts[1].1, left, "the job went to the other miner");
    assert!(subnet.paid_us(first) > 0, "the program ran");
}

#[test]
fn a_job_crosses_miners_that_lend_their_executors_for_less_than_it_takes() {
    let leave = "trap 'echo \"$i $s\" > $MUSTER_CHECKPOINT_DIR/left-$i; exit 85' TERM; ";
    let layout = Layout {
        lend_s: Some(10),
        ..Layout::default()
    };
    let script = format!("{leave}{}", counting_script(":"));
    let mut subnet = Subnet::start(layout, &program(&script), CheckpointTerms::default());
    let printed = assert_undisturbed(&subnet);
    let begun = printed.lines().next().unwrap();
    assert!(!begun.starts_with("attempt 1 "), "{printed}");
    let attempts = subnet.attempts();
    assert!(attempts.len() >= 2, "{attempts:?}");
    for (attempt, _) in attempts {
        assert!(subnet.paid_us(attempt) > 0, "the program ran in {attempt}");
    }
    // No miner takes a job of this length that cannot go on elsewhere.
    subnet.submit(&program(&script), None);
    let (status, metadata) = subnet.end();
    assert_ne!(status, JobStatus::Completed, "{metadata:#}");
    assert!(
        metadata
            .to_string()
            .contains("lends an executor to one program for 10 s at most"),
        "{metadata:#}"
    );
}

#[test]
fn a_program_that_ends_with_85_is_run_again_and_no_failure_is_told() {
    // It leaves after every ten steps, having saved.
    let leave = format!(
        "if [ $((i % 10)) -eq 0 ] && [ $i -lt {STEPS} ]; then echo \"$i $s\" > $MUSTER_CHECKPOINT_DIR/left-$i; exit 85; fi"
    );
    let mut subnet = start(&counting_script(&leave), CheckpointTerms::default());
    let printed = assert_undisturbed(&subnet);
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
    subnet.submit(&program(&counting_script(":")), Some(terms));
    let printed = assert_undisturbed(&subnet);
    let begun = printed.lines().next().unwrap();
    assert!(
        begun.starts_with("attempt 1 from ") && begun != "attempt 1 from 0",
        "{printed}"
    );
}

#[test]
fn a_program_that_stalls_is_stopped_and_its_job_goes_on_from_the_last_checkpoint() {
    // Its first attempt hangs after the tenth step, and does not end when it is asked to.
    let hang = format!(
        "if [ $MUSTER_ATTEMPT -eq 1 ] && [ $i -eq 10 ]; then trap '' TERM; while :; do {BUSYBOX} sleep 1; done; fi"
    );
    let terms = CheckpointTerms {
        stall_s: Some(10),
        ..CheckpointTerms::default()
    };
    let subnet = start(&counting_script(&hang), terms);
    let printed = assert_undisturbed(&subnet);
    assert!(printed.starts_with("attempt 2 from 8\n"), "{printed}");
    assert_eq!(subnet.attempts().len(), 2);
}

#[test]
fn a_program_that_runs_out_of_memory_is_run_again_with_half_its_batch_three_times() {
    let script =
        "echo scale $MUSTER_BATCH_SCALE; echo 'torch.OutOfMemoryError: CUDA out of memory' >&2; exit 1";
    let subnet = start(script, CheckpointTerms::default());
    let (status, metadata) = subnet.end();
    assert_eq!(status, JobStatus::Failed, "{metadata:#}");
    let printed = metadata["job_failure_details"]["docker_process_stdout"]
        .as_str()
        .unwrap();
    assert_eq!(printed, "scale 0.125\n");
    assert_eq!(subnet.attempts().len(), 4);
}
