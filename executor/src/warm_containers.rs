//! Warm containers (ADR 0024): started ahead, held by a program of ours, used once.
//!
//! A warm container is the container that a job of the same image, class and folders would get, except for the
//! program and its variables: the holder receives those when the job comes. No user's program has run in it before. A
//! warm container is removed after the job that it served, when no job comes for it, and when this process ends. If
//! this process was killed, the next one finds the container by the folder that its label names.

mod template;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use muster_containers::docker_engine::{ContainerEngine, InputSink, OutputStream};
use muster_containers::image_leases::Lease;
use muster_containers::image_pull::unwatched;
use muster_containers::images::ensure;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks, companion};
use muster_protocol::{AttemptId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use uuid::Uuid;

use crate::collector::{OutputCollector, OutputPlace};
use crate::config::Config;
use crate::engine_cache::EngineCache;
use crate::image_files::ImageUse;
use crate::workspace::Workspace;

pub(crate) use self::template::{ContainerShape, WarmTemplate, encode_program};

/// The file name of the holder, which comes with this program.
const HOLDER: &str = "muster-hold";
/// How often containers that wait too long are looked for, at most.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// How long removing all of them may take when this process ends.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// A container that waits for a job, with the folders made for it.
pub(crate) struct WarmContainer {
    workspace: Workspace,
    container: AttachedContainer,
    shape: ContainerShape,
    /// When it began to wait.
    since: Timestamp,
}

/// A running container, with the ends of its streams.
pub(crate) struct AttachedContainer {
    pub(crate) name: String,
    pub(crate) output: OutputStream,
    pub(crate) input: InputSink,
    /// The process that collects what it prints; `None` where there is none.
    pub(crate) collector: Option<OutputCollector>,
    engine: ContainerEngine,
    /// Keeps the image on this machine.
    _lease: Lease,
}

/// The containers that wait for jobs of this process. Clones share them.
#[derive(Clone)]
pub(crate) struct WarmPool(Arc<Inner>);

struct Inner {
    config: Arc<Config>,
    holder: PathBuf,
    tasks: Tasks,
    clock: SharedClock,
    state: Mutex<PoolState>,
    /// Notified whenever a container was made or could not be made.
    made: Notify,
}

#[derive(Default)]
struct PoolState {
    waiting: Vec<WarmContainer>,
    /// The shapes of those that are being made.
    coming: Vec<ContainerShape>,
    closed: bool,
}

/// Whether the pool has room for one more container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolRoom {
    Free,
    /// In place of the waiting container with this index.
    InPlaceOf(usize),
    Full,
}

// === impl WarmPool ===

impl WarmPool {
    /// An empty pool. `None` if the operator wants no warm containers, or the holder is missing.
    pub(crate) fn open(config: &Arc<Config>, tasks: &Tasks, clock: &SharedClock) -> Option<Self> {
        let settings = &config.persistent.warm;
        let named = settings.holder.clone();
        if settings.containers == 0 {
            return None;
        }
        // The engine wants an absolute path.
        let holder = if named.as_os_str().is_empty() {
            companion::find(HOLDER)
        } else {
            named.canonicalize().ok().filter(|path| path.is_file())
        };
        let Some(holder) = holder else {
            let holder = named.display();
            tracing::info!(%holder, "no containers are kept warm: the holder is missing");
            return None;
        };
        Some(Self(Arc::new(Inner {
            config: Arc::clone(config),
            holder,
            tasks: tasks.clone(),
            clock: Arc::clone(clock),
            state: Mutex::default(),
            made: Notify::new(),
        })))
    }

    /// Takes a container of this shape that still runs.
    pub(crate) fn take(&self, shape: &ContainerShape) -> Option<WarmContainer> {
        loop {
            let mut state = self.state();
            let found = state.waiting.iter().position(|warm| warm.shape == *shape)?;
            let mut warm = state.waiting.swap_remove(found);
            drop(state);
            // The holder prints nothing while it waits: any item is the end of the container or of its engine.
            if warm.container.output.next().now_or_never().is_none() {
                return Some(warm);
            }
            tracing::warn!(container = warm.container.name, "a warm container is gone");
            self.0.tasks.spawn("cold container", warm.discard());
        }
    }

    /// Makes one more container from a template in the background, if the pool has room for it.
    pub(crate) fn replenish(&self, engine: &ContainerEngine, template: WarmTemplate) {
        let mut state = self.state();
        let alike: Vec<_> = state
            .waiting
            .iter()
            .map(|warm| warm.shape == *template.shape())
            .collect();
        let ages: Vec<_> = state.waiting.iter().map(|warm| warm.since).collect();
        let most = self.0.config.persistent.warm.containers;
        if state.closed {
            return;
        }
        let gone = match find_room(&alike, &ages, state.coming.len(), most) {
            PoolRoom::Full => return,
            PoolRoom::Free => None,
            PoolRoom::InPlaceOf(index) => Some(state.waiting.swap_remove(index)),
        };
        state.coming.push(template.shape().clone());
        drop(state);
        let (pool, engine) = (self.clone(), engine.clone());
        self.0.tasks.spawn("warm container", async move {
            if let Some(replaced) = gone {
                replaced.discard().await;
            }
            let made = pool.make(engine, &template).await;
            if let Some(late) = pool.admit(template.shape(), made) {
                late.discard().await;
            }
            pool.0.made.notify_one();
        });
    }

    /// Lets a container that was made wait from now on. Returns it if the pool was closed meanwhile.
    fn admit(&self, shape: &ContainerShape, made: Option<WarmContainer>) -> Option<WarmContainer> {
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

    /// Removes containers that waited too long. Never ends.
    pub(crate) async fn sweep(self) {
        let keep = Duration::from_secs(self.0.config.persistent.warm.keep_s);
        loop {
            self.0.clock.sleep(keep.min(SWEEP_EVERY)).await;
            for warm in self.take_old(keep) {
                warm.discard().await;
            }
        }
    }

    fn take_old(&self, keep: Duration) -> Vec<WarmContainer> {
        let now = self.0.clock.now();
        let mut state = self.state();
        let (old, young) = std::mem::take(&mut state.waiting)
            .into_iter()
            .partition(|warm| now.since(warm.since) >= keep);
        state.waiting = young;
        old
    }

    /// Removes all containers, those that are being made included. No more are made.
    pub(crate) async fn close(&self) {
        let closing = async {
            loop {
                let (waiting, coming) = {
                    let mut state = self.state();
                    state.closed = true;
                    (std::mem::take(&mut state.waiting), state.coming.len())
                };
                for warm in waiting {
                    warm.discard().await;
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

    async fn make(&self, engine: ContainerEngine, template: &WarmTemplate) -> Option<WarmContainer> {
        match self.try_make(engine, template).await {
            Ok(warm) => Some(warm),
            Err(reason) => {
                tracing::warn!(reason, "no container is kept warm");
                None
            }
        }
    }

    async fn try_make(
        &self,
        engine: ContainerEngine,
        template: &WarmTemplate,
    ) -> Result<WarmContainer, String> {
        let (config, clock) = (&self.0.config, &self.0.clock);
        let name = template.image().id.to_string();
        let resolved = ensure(&engine, &config.images, &name, &unwatched(), clock)
            .await
            .map_err(|error| Causes(&error).to_string())?;
        let attempt = AttemptId::from_uuid(Uuid::new_v4());
        let (own, script, policy) = (Arc::clone(config), template.has_script(), template.policy());
        let work = move || Workspace::new_ahead(&own.work_dir, attempt, script, own.job_disk(&policy));
        let workspace = spawn_blocking(work)
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| Causes(&error).to_string())?;
        let body = template.warm_body(attempt, workspace.folders(), &self.0.holder);
        let body = body.ok_or("the job cannot be put into a container")?;
        let name = format!("muster-warm-{attempt}");
        let image_use = ImageUse {
            engine: &engine,
            image: template.image(),
            policy: template.policy(),
            folders: workspace.folders(),
            attempt,
            container: &name,
        };
        let found = Arc::clone(template.image_folders());
        // A job of this image ran before: whatever is left out was left out then, and the container's shape shows it.
        let laid = image_use.lay_files(found, &EngineCache::default()).await;
        laid.map_err(|error| Causes(&error).to_string())?;
        let place = OutputPlace::of(config, &workspace.folders().logs, policy.output);
        let started = async {
            engine.create(&name, body).await?;
            let streams = engine.attach_with_input(&name).await?;
            let collector = place.attach(place.start(), &name, clock).await;
            engine.start(&name).await?;
            Ok::<_, muster_containers::EngineError>((streams, collector))
        };
        match started.await {
            Ok(((output, input), collector)) => Ok(WarmContainer {
                workspace,
                shape: template.shape().clone(),
                since: clock.now(),
                container: AttachedContainer {
                    name,
                    output,
                    input,
                    collector,
                    engine,
                    _lease: resolved.lease,
                },
            }),
            Err(error) => {
                remove(&engine, &name, workspace).await;
                Err(Causes(&error).to_string())
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.0.state.lock()
    }
}

/// Finds room for one more container. `alike` states for each waiting container whether it has the wanted shape, `ages`
/// since when it waits. The oldest container of another shape gives way.
fn find_room(alike: &[bool], ages: &[Timestamp], coming: usize, most: usize) -> PoolRoom {
    if alike.len() + coming < most {
        return PoolRoom::Free;
    }
    let others = alike
        .iter()
        .zip(ages)
        .enumerate()
        .filter(|(_, (alike, _))| !**alike);
    let oldest = others.min_by_key(|(_, (_, since))| **since);
    oldest.map_or(PoolRoom::Full, |(index, _)| PoolRoom::InPlaceOf(index))
}

// === impl WarmContainer ===

impl WarmContainer {
    pub(crate) fn into_parts(self) -> (Workspace, AttachedContainer) {
        (self.workspace, self.container)
    }

    async fn discard(self) {
        remove(&self.container.engine, &self.container.name, self.workspace).await;
    }
}

/// Removes a container and its folders. If the container cannot be removed its folders stay, by which the next
/// executor finds it.
async fn remove(engine: &ContainerEngine, name: &str, workspace: Workspace) {
    if let Err(error) = engine.remove(name).await {
        tracing::warn!(container = name, error = %Causes(&error), "a warm container was not removed");
        return workspace.abandon();
    }
    if let Err(error) = workspace.remove() {
        tracing::warn!(error = %Causes(&error), "folders of a warm container were not removed");
    }
}

impl fmt::Debug for AttachedContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedContainer")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_warm_pool_replaces_its_oldest_container_of_another_shape() {
        let ages = [30, 10, 20].map(Timestamp::from_secs);
        assert_eq!(find_room(&[], &[], 0, 1), PoolRoom::Free);
        assert_eq!(find_room(&[], &[], 1, 1), PoolRoom::Full, "one is on its way");
        assert_eq!(find_room(&[true], &ages[..1], 0, 1), PoolRoom::Full);
        assert_eq!(find_room(&[true, false], &ages[..2], 0, 3), PoolRoom::Free);
        assert_eq!(
            find_room(&[false, false, false], &ages, 0, 3),
            PoolRoom::InPlaceOf(1)
        );
        assert_eq!(
            find_room(&[false, true, false], &ages, 0, 3),
            PoolRoom::InPlaceOf(2)
        );
        assert_eq!(find_room(&[], &[], 0, 0), PoolRoom::Full);
    }
}
