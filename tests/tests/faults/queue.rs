//! A thousand waiting jobs and two kills of the real validator process.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail as tests do, and the reader of the output is told how long each part took"
)]

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_client::{Client, Credential};
use muster_process::{Clock as _, SystemClock};
use muster_protocol::rest::{CreateJob, JobView};
use muster_protocol::{JobId, JobStatus, Timestamp};
use muster_testbed::{until, wait_for};
use muster_tests::{BUSYBOX, Layout, Parts, Role, shell_image};
use tokio::runtime::Runtime;

const JOBS: usize = 1_000;
/// Jobs that are let run to their end; the others are called off.
const COMPLETED: usize = 3;
/// Requests of the user's under way at a time.
const AT_ONCE: usize = 16;

fn status_of(runtime: &Runtime, user: &Client, job: JobId) -> JobStatus {
    runtime.block_on(user.job(job)).unwrap().last_status()
}

/// Submits a job; again if the facilitator has no validator at the moment.
async fn submit(user: &Client, job: &CreateJob) -> JobId {
    until("a facilitator with its validator", async || {
        match user.create(job).await {
            Ok(view) => Some(view.uuid),
            Err(error) => {
                eprintln!("the job is submitted again: {error:?}");
                None
            }
        }
    })
    .await
}

async fn submit_all(user: &Client, job: &CreateJob) -> Vec<JobId> {
    let created = stream::iter(0..JOBS).map(|_| submit(user, job));
    created.buffer_unordered(AT_ONCE).collect().await
}

async fn call_off(user: &Client, jobs: &[JobId]) {
    let cancelled = stream::iter(jobs).map(|job| async move { user.cancel(*job).await.map(|_| ()) });
    cancelled
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await
        .unwrap();
}

/// All jobs of the user.
async fn all_jobs(user: &Client) -> Vec<JobView> {
    let mut jobs = Vec::new();
    for page in 1.. {
        let next = user.jobs(page, 256).await.unwrap();
        jobs.extend(next.results);
        if next.next.is_none() {
            break;
        }
    }
    jobs
}

/// When the facilitator learned that the job was accepted.
fn accepted_at(view: &JobView) -> Timestamp {
    let entry = view
        .status_history
        .iter()
        .find(|entry| entry.status == JobStatus::Accepted);
    entry
        .unwrap_or_else(|| panic!("job {} was never accepted", view.uuid))
        .created_at
}

#[test]
#[ignore = "soak: takes more than half a minute, so `cargo xtask soak` runs it"]
fn a_thousand_waiting_jobs_outlive_kills_of_their_validator_in_their_order() {
    let runtime = Runtime::new().unwrap();
    muster_process::tls::install_provider();
    let clock = Arc::new(SystemClock::default());
    let layout = Layout {
        executors: 1,
        ..Layout::default()
    };
    let mut parts = Parts::start(&layout).unwrap();
    let image = runtime.block_on(shell_image("")).unwrap();
    let url = format!("http://{}", parts.address(Role::Facilitator));
    let login = Credential::hotkey(parts.keys().user.clone());
    let user = runtime
        .block_on(Client::connect(&url, login, clock.clone()))
        .unwrap();
    let took = |what: &str, since: Timestamp| eprintln!("{what}: {:?}", clock.now().since(since));

    // One job keeps the only executor, so that all others wait.
    let busy = parts
        .shell_job(image, &format!("{BUSYBOX} sleep 800"), 900)
        .unwrap();
    let holder = runtime.block_on(user.create(&busy)).unwrap().uuid;
    wait_for("the first job's program", || {
        let status = status_of(&runtime, &user, holder);
        anyhow::Ok((status == JobStatus::VolumesReady).then_some(()))
    })
    .unwrap();

    // The validator is killed while jobs arrive, and once more when all are there.
    let since = clock.now();
    let short = parts.shell_job(image, &format!("{BUSYBOX} true"), 900).unwrap();
    let submitted = std::thread::scope(|scope| {
        let submitting = scope.spawn(|| runtime.block_on(submit_all(&user, &short)));
        wait_for("half of the jobs in the queue", || {
            let waiting = parts.waiting_jobs()?.len();
            anyhow::Ok((waiting >= JOBS / 2).then_some(()))
        })
        .unwrap();
        parts.kill(Role::Validator).unwrap();
        parts.begin(Role::Validator).unwrap();
        submitting.join().unwrap()
    });
    let full_queue = |parts: &Parts| {
        wait_for("all jobs in the queue", || {
            let waiting = parts.waiting_jobs()?;
            anyhow::Ok((waiting.len() == JOBS).then_some(waiting))
        })
        .unwrap()
    };
    let order = full_queue(&parts);
    took("jobs submitted, one kill while they came", since);
    let expected: BTreeSet<_> = submitted.into_iter().collect();
    assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), expected);
    let since = clock.now();
    parts.kill(Role::Validator).unwrap();
    parts.begin(Role::Validator).unwrap();
    assert_eq!(full_queue(&parts), order);
    took("killed and started again with its queue", since);

    // All but the first are called off, and then the first run in their order.
    let since = clock.now();
    let (first, others) = order.split_at(COMPLETED);
    runtime.block_on(call_off(&user, others));
    wait_for("the end of all jobs that were called off", || {
        anyhow::Ok((parts.waiting_jobs()? == first).then_some(()))
    })
    .unwrap();
    took("called off", since);
    let since = clock.now();
    runtime.block_on(call_off(&user, &[holder]));
    let views = wait_for("the end of every job", || {
        let jobs = runtime.block_on(all_jobs(&user));
        let over = jobs.iter().all(|job| job.last_status().is_terminal());
        anyhow::Ok(over.then_some(jobs))
    })
    .unwrap();
    took("the first jobs completed", since);
    assert_eq!(views.len(), JOBS + 1);
    let view_of = |job: &JobId| views.iter().find(|view| view.uuid == *job).unwrap();
    let completed: Vec<_> = first.iter().map(view_of).collect();
    for view in &completed {
        assert_eq!(view.last_status(), JobStatus::Completed, "{view:?}");
    }
    assert!(
        completed.is_sorted_by_key(|view| accepted_at(view)),
        "{completed:?}"
    );
    for job in others {
        let end = view_of(job).last_status();
        // The facilitator itself ends a job whose first update it has not received yet.
        let is_called_off = end == JobStatus::Failed || end == JobStatus::Rejected;
        assert!(is_called_off, "job {job} ended as {end}");
    }
}
