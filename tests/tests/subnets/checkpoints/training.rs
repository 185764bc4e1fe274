//! Programs that train, each killed in several stages and resumed on the other miner: the weights at the end are those
//! of an undisturbed run, byte for byte. A regression in the shell is trained in every run of the tests; the trainers
//! that people use take minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use muster_protocol::job::CheckpointTerms;
use muster_protocol::rest::JobMetricsView;
use muster_testbed::patience;
use muster_tests::{
    BUSYBOX, Layout, Role, TRAINING_IMAGE, held_limit_s, program_from_env, run, shell_image, training_image,
    while_held,
};

use super::subnet::{Program, Subnet};

const PYTHON: &str = "MUSTER_TEST_TRAINING_PYTHON";
const MOTO: &str = "MUSTER_TEST_MOTO_PYTHON";

/// One step of a regression's descent in awk: the weights, the seed of the next step and the loss. Its numbers are
/// written down in full, so a run that goes on from them computes what an undisturbed one does.
const DESCENT: &str = "BEGIN { \
    for (i = 0; i < 16; i++) { s = (s * 16807) % 2147483647; x = s / 2147483647; e = a * x + b - (3 * x - 2); \
    loss += e * e / 16; da += e * x / 8; db += e / 8 } \
    printf \"%.17g %.17g %.0f %.6f\", a - da / 2, b - db / 2, s, loss }";

/// The moment at which a machine and its miner are lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// The program runs and has saved nothing.
    BeforeTheFirst,
    /// The program has begun to write something new into its folder.
    InMidWrite,
    /// The job keeps this many checkpoints more than at the last loss.
    AfterKept(u32),
}

/// A program that trains.
struct Training {
    image: &'static str,
    arguments: Vec<String>,
    /// The arguments with which it waits for nothing.
    undisturbed: Vec<String>,
    metrics: Vec<(&'static str, &'static str)>,
    /// Whether each of its runs goes on until it is released.
    held: bool,
}

impl Training {
    /// A program of `images/train`.
    fn of_script(script: &str, arguments: &[&str], metrics: Vec<(&'static str, &'static str)>) -> Self {
        let own: Vec<String> = std::iter::once(script)
            .chain(arguments.iter().copied())
            .map(str::to_owned)
            .collect();
        let at_once = ["--pause", "0"].map(str::to_owned);
        Self {
            image: TRAINING_IMAGE,
            undisturbed: own.iter().cloned().chain(at_once).collect(),
            arguments: own,
            metrics,
            held: false,
        }
    }

    /// A linear regression by gradient descent in the shell, with this many steps and these between two checkpoints. A
    /// run that has saved its first checkpoint waits for its release.
    fn regression(steps: u64, save_every: u64) -> Self {
        let script = |held: &str, pause: &str| {
            format!(
                "B={BUSYBOX}; step=0; a=0; b=0; seed=1; saved=; \
                 if [ -n \"$MUSTER_RESUME\" ]; then read step a b seed < $MUSTER_RESUME; fi; \
                 echo from step $step; \
                 while [ $step -lt {steps} ]; do \
                   if [ -n \"$saved\" ]; then {held} fi; \
                   set -- $($B awk -v a=$a -v b=$b -v s=$seed '{DESCENT}'); \
                   a=$1; b=$2; seed=$3; step=$((step+1)); named=; {pause} \
                   if [ $((step % {save_every})) -eq 0 ]; then \
                     saved=$MUSTER_CHECKPOINT_DIR/step-$step; echo $step $a $b $seed > $saved.tmp; \
                     $B mv $saved.tmp $saved; named=\",\\\"checkpoint\\\":\\\"step-$step\\\"\"; fi; \
                   if [ -n \"$MUSTER_PROGRESS\" ]; then \
                     echo \"{{\\\"step\\\":$step,\\\"steps\\\":{steps},\\\"metrics\\\":{{\\\"loss\\\":$4}}$named}}\" \
                       >> $MUSTER_PROGRESS; fi; \
                   echo step $step loss $4; done; \
                 echo weights $a $b"
            )
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let arguments = |script: String| vec!["-c".to_owned(), script];
        Self {
            image: runtime.block_on(shell_image("")).unwrap(),
            arguments: arguments(script(&while_held(""), "$B sleep 0.3;")),
            undisturbed: arguments(script(":;", "")),
            metrics: vec![],
            held: true,
        }
    }

    fn program(&self) -> Program {
        Program {
            image: self.image,
            arguments: self.arguments.clone(),
            limit_s: held_limit_s().max(900),
            metrics: self.metrics.clone(),
            held: self.held,
        }
    }

    /// The output of the program if nothing disturbs it and its data comes at once.
    fn undisturbed_output(&self) -> String {
        let mut docker = Command::new("docker");
        docker
            .args(["run", "--rm", "--network", "none"])
            .args(["--env", "MUSTER_CHECKPOINT_DIR=/checkpoint"])
            .args(["--tmpfs", "/checkpoint", "--tmpfs", "/artifacts", self.image])
            .args(&self.undisturbed);
        let ran = run(&mut docker).unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    }

    /// Runs it through these losses. Returns the subnet with the job, and what the last attempt printed.
    fn run_through(&self, layout: Layout, losses: &[Loss]) -> (Subnet, String) {
        let mut subnet = Subnet::start(layout, &self.program(), CheckpointTerms::default());
        let mut kept = 0;
        for loss in losses {
            let (pid, folder) = subnet.container();
            match loss {
                Loss::BeforeTheFirst => assert_eq!(names(&folder), BTreeSet::new(), "nothing is saved"),
                Loss::InMidWrite => {
                    let before = names(&folder);
                    wait_closely(|| !names(&folder).is_subset(&before));
                }
                Loss::AfterKept(more) => {
                    let view = subnet.wait_for_checkpoint(kept + more);
                    kept = view.checkpoints.last().unwrap().ordinal;
                }
            }
            let attempts = subnet.attempts().len();
            let miner = subnet.lose_container(pid);
            subnet.wait_for("the next attempt", || {
                (subnet.attempts().len() > attempts).then_some(())
            });
            subnet.parts.begin(miner).unwrap();
        }
        let response = subnet.response();
        let printed = response["docker_process_stdout"].as_str().unwrap().to_owned();
        (subnet, printed)
    }
}

/// Waits until a condition holds that may hold for milliseconds only.
fn wait_closely(holds: impl Fn() -> bool) {
    const LOOK: Duration = Duration::from_millis(1);
    let mut waited = Duration::ZERO;
    while !holds() {
        std::thread::park_timeout(LOOK);
        waited += LOOK;
        assert!(waited < patience(), "the program saves nothing");
    }
}

/// The paths directly in a folder.
fn names(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The line with the digest of the weights.
fn weights(printed: &str) -> &str {
    let line = printed.lines().last().unwrap();
    assert!(line.starts_with("weights "), "{printed}");
    line
}

/// Loads the image.
fn load_image() {
    let python = program_from_env(PYTHON).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(training_image(Path::new(&python))).unwrap();
}

/// A bucket of an independent S3 server.
struct Bucket {
    child: Child,
    ask: ChildStdin,
    lines: BufReader<ChildStdout>,
    endpoint: String,
}

impl Bucket {
    fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/s3_bucket.py");
        let mut child = Command::new(program_from_env(MOTO).unwrap())
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut bucket = Self {
            ask: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()),
            child,
            endpoint: String::new(),
        };
        bucket.endpoint = bucket.line();
        bucket
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// The number of objects below a prefix.
    fn objects(&mut self, prefix: &str) -> usize {
        writeln!(self.ask, "{prefix}").unwrap();
        self.line().parse().unwrap()
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Trains through two losses with the checkpoints in a bucket, and checks the weights, the curve of `steps` steps and
/// what is kept.
fn assert_one_curve(training: &Training, steps: u64) {
    let undisturbed = training.undisturbed_output();
    let mut bucket = Bucket::start();
    let layout = Layout {
        files: Some(format!(
            "s3://jobs/files?endpoint={}&region=us-east-1",
            bucket.endpoint
        )),
        ..Layout::default()
    };
    let losses = [Loss::AfterKept(1), Loss::AfterKept(1)];
    let (subnet, printed) = training.run_through(layout, &losses);
    assert_eq!(weights(&printed), weights(&undisturbed));
    assert!(!printed.starts_with("from step 0"), "{printed}");
    let attempts = subnet.attempts();
    assert_eq!(attempts.len(), 3, "{attempts:?}");
    let miners: BTreeSet<&str> = attempts.iter().map(|(_, miner)| miner.name()).collect();
    assert_eq!(
        miners,
        BTreeSet::from([Role::Miner.name(), Role::SpareMiner.name()])
    );
    // The blocks lie in the bucket, and what is kept can be fetched from there.
    assert!(bucket.objects(&format!("files/blocks/{}", subnet.job)) > 1);
    let saved = subnet.parts.folder().join("fetched");
    let kept = subnet.wait_for_checkpoint(1);
    let newest = kept.checkpoints.last().unwrap();
    subnet.list_checkpoints(&[
        "--get",
        &newest.ordinal.to_string(),
        "--save",
        saved.to_str().unwrap(),
    ]);
    assert_eq!(saved.join(&newest.name).metadata().unwrap().len(), newest.bytes);
    // Every loss that was reported is the loss of that step in the undisturbed run.
    let expected: BTreeMap<u64, f64> = undisturbed.lines().filter_map(step_and_loss).collect();
    let metrics: JobMetricsView = subnet.runtime.block_on(subnet.user.metrics(subnet.job)).unwrap();
    let series = metrics
        .series
        .iter()
        .find(|series| series.name.as_str() == "loss");
    let points = &series.unwrap().points;
    assert!(points.len() >= 3, "{points:?}");
    for point in points {
        let (step, value) = (point.step.unwrap(), point.value.get());
        assert!(
            (expected[&step] - value).abs() < 1e-4,
            "step {step}: {value}, and undisturbed {}",
            expected[&step]
        );
    }
    assert_eq!(points.last().unwrap().step, Some(steps));
}

#[test]
fn a_regression_is_trained_through_two_losses_on_one_curve_with_its_checkpoints_in_a_bucket() {
    assert_one_curve(&Training::regression(12, 3), 12);
}

#[test]
#[ignore = "soak: a language model is trained for minutes, so `cargo xtask soak` runs it"]
fn a_small_language_model_is_trained_through_two_losses_on_one_curve_with_its_checkpoints_in_a_bucket() {
    load_image();
    // Slow enough that a checkpoint is kept long before the next one is saved.
    let arguments = ["--steps", "36", "--save-every", "6", "--pause", "2"];
    let training = Training::of_script("/train/plain_torch.py", &arguments, vec![]);
    assert_one_curve(&training, 36);
}

/// The step and the loss in a line such as `step 3 loss 2.1047`.
fn step_and_loss(line: &str) -> Option<(u64, f64)> {
    let (step, loss) = line.strip_prefix("step ")?.split_once(" loss ")?;
    Some((step.parse().ok()?, loss.parse().ok()?))
}

#[test]
#[ignore = "soak: Hugging Face's trainer takes minutes, so `cargo xtask soak` runs it"]
fn hugging_faces_trainer_goes_on_after_a_loss_in_every_stage() {
    load_image();
    let metrics = vec![("loss", "'loss': '?([0-9.]+)")];
    let training = Training::of_script("/train/huggingface.py", &[], metrics);
    let undisturbed = training.undisturbed_output();
    let losses = [Loss::BeforeTheFirst, Loss::AfterKept(1), Loss::InMidWrite];
    let (subnet, printed) = training.run_through(Layout::default(), &losses);
    assert_eq!(weights(&printed), weights(&undisturbed));
    let metrics = subnet.runtime.block_on(subnet.user.metrics(subnet.job)).unwrap();
    assert_eq!(metrics.series[0].name.as_str(), "loss", "{metrics:?}");
}

#[test]
#[ignore = "soak: Lightning's trainer takes minutes, so `cargo xtask soak` runs it"]
fn lightning_goes_on_after_a_loss_in_every_stage() {
    load_image();
    let metrics = vec![("loss", "loss ([0-9.]+)")];
    let training = Training::of_script("/train/lightning_fit.py", &[], metrics);
    let undisturbed = training.undisturbed_output();
    let losses = [Loss::BeforeTheFirst, Loss::AfterKept(1), Loss::InMidWrite];
    let (_, printed) = training.run_through(Layout::default(), &losses);
    assert_eq!(weights(&printed), weights(&undisturbed));
}
