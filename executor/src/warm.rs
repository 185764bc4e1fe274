//! Containers that wait for jobs (ADR 0024): started ahead, held by a program of ours, used once.
//!
//! A waiting container is what a job of the same image, class and folders would be put into, but for its program and its
//! variables, which it is told when the job comes. Nobody's program has run in it before. It goes with the job that it
//! served, when nothing comes for it, and with this process; where this process was killed, the next one finds it by the
//! folder that its label names.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::models::{ContainerCreateBody, Mount, MountType};
use futures_util::{FutureExt as _, StreamExt as _};
use muster_containers::engine::InputSink;
use muster_containers::images::ensure;
use muster_containers::lease::Lease;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::miner::JobRequest;
use muster_protocol::{AttemptId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use uuid::Uuid;

use crate::config::{Config, Policy};
use crate::engine::{Engine, LocalImage, OutputStream};
use crate::sandbox::{JobFolders, Sealed, labels};
use crate::workspace::Workspace;

/// Where a container has the program that holds it.
const HOLD: &str = "/.muster-hold";
/// The holder's name beside this program.
const HOLDER: &str = "muster-hold";
/// How often old ones are looked for, at most.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// How long leaving may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// What two jobs must have in common to be served by containers made alike: everything but program, variables and folders'
/// places.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape(ContainerCreateBody);

/// How a container for the next job like this one is made.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    shape: Shape,
    /// The job without anything that is its user's alone.
    template: JobRequest,
    image: LocalImage,
    bare_home: Option<String>,
    policy: Policy,
    runtime: String,
}

/// A container that waits.
pub(crate) struct Held {
    workspace: Workspace,
    waiting: Waiting,
    shape: Shape,
    since: Timestamp,
}

/// The container itself: its name, and the ends of its streams.
pub(crate) struct Waiting {
    pub(crate) name: String,
    pub(crate) output: OutputStream,
    pub(crate) input: InputSink,
    engine: Engine,
    _lease: Lease,
}

/// The containers that wait for jobs of this process. Clones are one.
#[derive(Clone)]
pub(crate) struct Warm(Arc<Pool>);

struct Pool {
    config: Arc<Config>,
    holder: PathBuf,
    tasks: Tasks,
    clock: SharedClock,
    state: Mutex<State>,
    made: Notify,
}

#[derive(Default)]
struct State {
    waiting: Vec<Held>,
    coming: Vec<Shape>,
    closed: bool,
}

/// What to do for one more of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// In place of this one.
    InPlaceOf(usize),
    Enough,
}

// === impl Plan ===

impl Plan {
    /// From a job that is about to run. `None` where it cannot be put into a container at all.
    pub(crate) fn of(
        job: &JobRequest,
        image: &LocalImage,
        bare_home: Option<String>,
        policy: Policy,
        runtime: &str,
    ) -> Option<Self> {
        let template = JobRequest {
            docker_run_cmd: Vec::new(),
            env: indexmap::IndexMap::new(),
            raw_script: job.raw_script.as_ref().map(|_| String::new()),
            volume: None,
            output_upload: None,
            ..job.clone()
        };
        let mut plan = Self {
            shape: Shape(ContainerCreateBody::default()),
            template,
            image: image.clone(),
            bare_home,
            policy,
            runtime: runtime.to_owned(),
        };
        let nowhere = JobFolders::under(Path::new("/"));
        // Without a program the engine refuses the job itself, in its own words.
        orders(image, &sealed(job, &plan, &nowhere)?, "")?;
        let body = plan.body(&nowhere)?;
        plan.shape = Shape(ContainerCreateBody {
            cmd: None,
            labels: None,
            ..body
        });
        Some(plan)
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    fn body(&self, folders: &JobFolders) -> Option<ContainerCreateBody> {
        sealed(&self.template, self, folders)
    }

    /// The container that waits: our program in place of the job's, and nothing else different.
    fn waiting_body(
        &self,
        attempt: AttemptId,
        folders: &JobFolders,
        holder: &Path,
    ) -> Option<ContainerCreateBody> {
        let mut body = self.body(folders)?;
        body.labels = Some(labels(attempt, &folders.root));
        body.entrypoint = Some(vec![HOLD.to_owned()]);
        body.cmd = Some(Vec::new());
        body.attach_stdin = Some(true);
        body.open_stdin = Some(true);
        body.stdin_once = Some(true);
        let mounts = body.host_config.as_mut()?.mounts.as_mut()?;
        mounts.push(Mount {
            typ: Some(MountType::BIND),
            source: Some(holder.display().to_string()),
            target: Some(HOLD.to_owned()),
            read_only: Some(true),
            ..Mount::default()
        });
        Some(body)
    }
}

fn sealed(job: &JobRequest, plan: &Plan, folders: &JobFolders) -> Option<ContainerCreateBody> {
    let sealed = Sealed {
        job,
        image: &plan.image,
        bare_home: plan.bare_home.as_deref(),
        policy: plan.policy,
        gpus: &[],
        folders,
        runtime: &plan.runtime,
        streaming: false,
    };
    sealed.container().ok()
}

/// What a waiting container is told: the program of the job whose own container would be `body`. `None` where neither job
/// nor image names a program.
pub(crate) fn orders(image: &LocalImage, body: &ContainerCreateBody, mark: &str) -> Option<String> {
    let command = body.cmd.as_ref().unwrap_or(&image.command);
    let program: Vec<_> = image.entrypoint.iter().chain(command).collect();
    if program.is_empty() {
        return None;
    }
    let environment = body.env.clone().unwrap_or_default();
    let orders = json!({"program": program, "environment": environment, "mark": mark});
    Some(format!("{orders}\n"))
}

// === impl Warm ===

impl Warm {
    /// `None` where the operator wants none, or the program that holds them is not there.
    pub(crate) fn open(config: &Arc<Config>, tasks: &Tasks, clock: &SharedClock) -> Option<Self> {
        let settings = &config.standing.warm;
        let named = settings.holder.clone();
        let holder = if named.as_os_str().is_empty() {
            std::env::current_exe().ok()?.with_file_name(HOLDER)
        } else {
            named
        };
        if settings.containers == 0 {
            return None;
        }
        if !holder.is_file() {
            tracing::info!(holder = %holder.display(), "no containers are kept warm: there is no program to hold them");
            return None;
        }
        // The engine wants an absolute path.
        let holder = holder.canonicalize().ok()?;
        Some(Self(Arc::new(Pool {
            config: Arc::clone(config),
            holder,
            tasks: tasks.clone(),
            clock: Arc::clone(clock),
            state: Mutex::default(),
            made: Notify::new(),
        })))
    }

    /// A container of this shape that still waits.
    pub(crate) fn take(&self, shape: &Shape) -> Option<Held> {
        loop {
            let mut state = self.state();
            let found = state.waiting.iter().position(|held| held.shape == *shape)?;
            let mut held = state.waiting.swap_remove(found);
            drop(state);
            // It says nothing while it waits: what comes is its end, or that of its engine.
            if held.waiting.output.next().now_or_never().is_none() {
                return Some(held);
            }
            tracing::warn!(container = held.waiting.name, "a warm container is gone");
            self.0.tasks.spawn("cold container", held.discard());
        }
    }

    /// Has one more of this shape made, if there is room for it.
    pub(crate) fn keep(&self, engine: &Engine, plan: Plan) {
        let mut state = self.state();
        let alike: Vec<_> = state
            .waiting
            .iter()
            .map(|held| held.shape == plan.shape)
            .collect();
        let ages: Vec<_> = state.waiting.iter().map(|held| held.since).collect();
        let most = self.0.config.standing.warm.containers;
        if state.closed {
            return;
        }
        let gone = match room(&alike, &ages, state.coming.len(), most) {
            Room::Enough => return,
            Room::Free => None,
            Room::InPlaceOf(index) => Some(state.waiting.swap_remove(index)),
        };
        state.coming.push(plan.shape.clone());
        drop(state);
        let (warm, engine) = (self.clone(), engine.clone());
        self.0.tasks.spawn("warm container", async move {
            if let Some(held) = gone {
                held.discard().await;
            }
            if let Some(late) = warm.arrived(&plan.shape, warm.make(engine, &plan).await) {
                late.discard().await;
            }
            warm.0.made.notify_one();
        });
    }

    /// What was made waits from now on; it is given back where nothing is to wait any more.
    fn arrived(&self, shape: &Shape, made: Option<Held>) -> Option<Held> {
        let mut state = self.state();
        if let Some(index) = state.coming.iter().position(|coming| coming == shape) {
            state.coming.swap_remove(index);
        }
        if state.closed {
            return made;
        }
        state.waiting.extend(made);
        None
    }

    /// Lets go of those that nobody came for, for as long as this process serves.
    pub(crate) async fn sweep(self) {
        let keep = Duration::from_secs(self.0.config.standing.warm.keep_s);
        loop {
            self.0.clock.sleep(keep.min(SWEEP_EVERY)).await;
            for held in self.old(keep) {
                held.discard().await;
            }
        }
    }

    fn old(&self, keep: Duration) -> Vec<Held> {
        let now = self.0.clock.now();
        let mut state = self.state();
        let (old, young) = std::mem::take(&mut state.waiting)
            .into_iter()
            .partition(|held| now.since(held.since) >= keep);
        state.waiting = young;
        old
    }

    /// Lets go of all, and of those on their way.
    pub(crate) async fn close(&self) {
        let closing = async {
            loop {
                let (waiting, coming) = {
                    let mut state = self.state();
                    state.closed = true;
                    (std::mem::take(&mut state.waiting), state.coming.len())
                };
                for held in waiting {
                    held.discard().await;
                }
                if coming == 0 {
                    return;
                }
                self.0.made.notified().await;
            }
        };
        if timeout(CLOSE_LIMIT, closing).await.is_err() {
            tracing::warn!("warm containers are left; the next executor removes them");
        }
    }

    async fn make(&self, engine: Engine, plan: &Plan) -> Option<Held> {
        match self.try_make(engine, plan).await {
            Ok(held) => Some(held),
            Err(reason) => {
                tracing::warn!(reason, "no container is kept warm");
                None
            }
        }
    }

    async fn try_make(&self, engine: Engine, plan: &Plan) -> Result<Held, String> {
        let (config, clock) = (&self.0.config, &self.0.clock);
        let name = plan.image.id.to_string();
        let unwatched: muster_containers::pull::Progress = Arc::new(|_, _| {});
        let resolved = ensure(&engine, &config.images, &name, &unwatched, clock)
            .await
            .map_err(|error| Causes(&error).to_string())?;
        let attempt = AttemptId::from_uuid(Uuid::new_v4());
        let (work_dir, script) = (config.work_dir.clone(), plan.template.raw_script.is_some());
        let workspace = spawn_blocking(move || Workspace::ahead(&work_dir, attempt, script))
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| Causes(&error).to_string())?;
        let body = plan.waiting_body(attempt, workspace.folders(), &self.0.holder);
        let body = body.ok_or("the job cannot be put into a container")?;
        let name = format!("muster-warm-{attempt}");
        let started = async {
            engine.create(&name, body).await?;
            let streams = engine.attach_with_input(&name).await?;
            engine.start(&name).await?;
            Ok::<_, crate::EngineError>(streams)
        };
        match started.await {
            Ok((output, input)) => Ok(Held {
                workspace,
                shape: plan.shape.clone(),
                since: clock.now(),
                waiting: Waiting {
                    name,
                    output,
                    input,
                    engine,
                    _lease: resolved.lease,
                },
            }),
            Err(error) => {
                gone(&engine, &name, workspace).await;
                Err(Causes(&error).to_string())
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

/// Whether one more fits: `alike` says of each that waits whether it has the shape wanted, `ages` since when it waits.
fn room(alike: &[bool], ages: &[Timestamp], coming: usize, most: usize) -> Room {
    if alike.len() + coming < most {
        return Room::Free;
    }
    let others = alike
        .iter()
        .zip(ages)
        .enumerate()
        .filter(|(_, (alike, _))| !**alike);
    let oldest = others.min_by_key(|(_, (_, since))| **since);
    oldest.map_or(Room::Enough, |(index, _)| Room::InPlaceOf(index))
}

// === impl Held ===

impl Held {
    /// Its folders, and itself.
    pub(crate) fn parts(self) -> (Workspace, Waiting) {
        (self.workspace, self.waiting)
    }

    /// Nobody needs it.
    async fn discard(self) {
        gone(&self.waiting.engine, &self.waiting.name, self.workspace).await;
    }
}

/// Removes a container and its folders. By folders that stay the next executor finds a container that stays.
async fn gone(engine: &Engine, name: &str, workspace: Workspace) {
    if let Err(error) = engine.remove(name).await {
        tracing::warn!(container = name, error = %Causes(&error), "a warm container stays");
        return workspace.leave();
    }
    if let Err(error) = workspace.remove() {
        tracing::warn!(error = %Causes(&error), "folders of a warm container stay");
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use muster_containers::sandbox::{Allowance, Root, RunAs};
    use muster_protocol::wire::miner::OptionsPreset;
    use muster_protocol::{Digest, ExecutorClass, ImageId};

    use super::*;

    fn job() -> JobRequest {
        JobRequest {
            job_uuid: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
            executor_class: ExecutorClass::AlwaysOnTest,
            docker_image: "x".into(),
            raw_script: None,
            docker_run_options_preset: OptionsPreset::None,
            docker_run_cmd: vec!["-c".into(), "echo \"hé\"".into()],
            env: [("A".to_owned(), "b=c".to_owned())].into(),
            volume: None,
            output_upload: None,
            artifacts_dir: None,
        }
    }

    fn image(name: &str) -> LocalImage {
        LocalImage {
            entrypoint: vec!["/bin/sh".into()],
            ..LocalImage::default_for(ImageId(Digest::of(name.as_bytes())))
        }
    }

    fn policy() -> Policy {
        Policy {
            allowance: Allowance {
                nano_cpus: 1,
                memory: 2,
                shm: 3,
                tmpfs: 4,
                pids: 5,
                disk: 6,
            },
            run_as: RunAs::Image,
            root: Root::ReadOnly,
        }
    }

    fn plan(job: &JobRequest, image: &LocalImage, policy: Policy) -> Plan {
        Plan::of(job, image, Some("/root".into()), policy, "").unwrap()
    }

    #[test]
    fn only_jobs_of_one_image_class_and_folders_share_a_shape() {
        let base = plan(&job(), &image("a"), policy());
        let mut other = job();
        other.job_uuid = "21111111-2222-4333-8444-555555555555".parse().unwrap();
        other.docker_run_cmd = vec!["different".into()];
        other.env = [("OTHER".to_owned(), "x".to_owned())].into();
        assert_eq!(base.shape, plan(&other, &image("a"), policy()).shape);

        assert_ne!(base.shape, plan(&job(), &image("b"), policy()).shape);
        let mut stricter = policy();
        stricter.allowance.pids = 4;
        assert_ne!(base.shape, plan(&job(), &image("a"), stricter).shape);
        let nobody = Policy {
            run_as: RunAs::Nobody,
            ..policy()
        };
        assert_ne!(base.shape, plan(&job(), &image("a"), nobody).shape);
        let writable = Policy {
            root: Root::Writable,
            ..policy()
        };
        assert_ne!(base.shape, plan(&job(), &image("a"), writable).shape);
        let artifacts = JobRequest {
            artifacts_dir: Some("/artifacts".into()),
            ..job()
        };
        assert_ne!(base.shape, plan(&artifacts, &image("a"), policy()).shape);
        let script = JobRequest {
            raw_script: Some("print(1)".into()),
            ..job()
        };
        assert_ne!(base.shape, plan(&script, &image("a"), policy()).shape);
        let homeless = Plan::of(&job(), &image("a"), None, policy(), "").unwrap();
        assert_ne!(base.shape, homeless.shape);
        let gvisor = Plan::of(&job(), &image("a"), Some("/root".into()), policy(), "runsc").unwrap();
        assert_ne!(base.shape, gvisor.shape);
    }

    #[test]
    fn what_waits_differs_from_the_jobs_own_container_in_its_program_alone() {
        let plan = plan(&job(), &image("a"), policy());
        let attempt = job().job_uuid;
        let folders = JobFolders::under(Path::new("/work/x"));
        let body = plan
            .waiting_body(attempt, &folders, Path::new("/opt/muster-hold"))
            .unwrap();
        assert_eq!(body.entrypoint, Some(vec![HOLD.to_owned()]));
        assert_eq!((&body.cmd, &body.env), (&Some(vec![]), &Some(vec![])));
        let sealed = Sealed {
            job: &job(),
            image: &image("a"),
            bare_home: Some("/root"),
            policy: policy(),
            gpus: &[],
            folders: &folders,
            runtime: "",
            streaming: false,
        };
        let mut host = body.host_config.unwrap();
        let holder = host.mounts.as_mut().unwrap().pop().unwrap();
        assert_eq!(
            (holder.target.as_deref(), holder.read_only),
            (Some(HOLD), Some(true))
        );
        assert_eq!(Some(host), sealed.container().unwrap().host_config);
    }

    #[test]
    fn orders_are_what_the_holder_reads() {
        let sealed = ContainerCreateBody {
            cmd: Some(job().docker_run_cmd),
            env: Some(vec!["A=b=c".into(), "GONE".into()]),
            ..ContainerCreateBody::default()
        };
        // As in images/hold/src/lib.rs.
        let golden = "{\"program\":[\"/bin/sh\",\"-c\",\"echo \\\"hé\\\"\"],\"environment\":[\"A=b=c\",\"GONE\"],\"mark\":\"m\"}\n";
        assert_eq!(orders(&image("a"), &sealed, "m").unwrap(), golden);
        let own = LocalImage {
            command: vec!["own".into()],
            ..image("a")
        };
        let without = ContainerCreateBody::default();
        assert!(
            orders(&own, &without, "m")
                .unwrap()
                .contains("[\"/bin/sh\",\"own\"]")
        );
        let none = LocalImage::default_for(own.id);
        assert_eq!(orders(&none, &without, "m"), None);
    }

    #[test]
    fn there_are_never_more_than_so_many_and_the_oldest_of_another_shape_gives_way() {
        let ages = [30, 10, 20].map(Timestamp::from_secs);
        assert_eq!(room(&[], &[], 0, 1), Room::Free);
        assert_eq!(room(&[], &[], 1, 1), Room::Enough, "one is on its way");
        assert_eq!(room(&[true], &ages[..1], 0, 1), Room::Enough);
        assert_eq!(room(&[true, false], &ages[..2], 0, 3), Room::Free);
        assert_eq!(room(&[false, false, false], &ages, 0, 3), Room::InPlaceOf(1));
        assert_eq!(room(&[false, true, false], &ages, 0, 3), Room::InPlaceOf(2));
        assert_eq!(room(&[], &[], 0, 0), Room::Enough);
    }
}
