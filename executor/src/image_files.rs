//! The files of an image that a job may write beside: found by a look into the image, laid into the job's folders, and
//! the job's folders given to the user that the image names.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_containers::docker_engine::{ContainerEngine, LocalImage};
use muster_containers::image_folders::{ImageFolders, look};
use muster_containers::laid_files::{LayError, LayPlace, give_folders, lay};
use muster_containers::sandbox::RunAs;
use muster_containers::{EngineError, OwnerIds};
use muster_process::{Backoff, SharedClock};
use muster_protocol::AttemptId;

use crate::config::Policy;
use crate::engine_cache::EngineCache;
use crate::job_sandbox::{JobFolders, labels};

/// A job whose image's files are wanted.
pub(crate) struct ImageUse<'a> {
    pub(crate) engine: &'a ContainerEngine,
    pub(crate) image: &'a LocalImage,
    pub(crate) policy: Policy,
    pub(crate) folders: &'a JobFolders,
    pub(crate) attempt: AttemptId,
    /// The beginning of the names of containers by which the image is read.
    pub(crate) container: &'a str,
}

// === impl ImageUse ===

impl ImageUse<'_> {
    /// The image's folders that its jobs may write to: from the cache, or by a look into the image. An engine that goes
    /// away meanwhile is waited for.
    pub(crate) async fn find_folders(
        &self,
        cache: &EngineCache,
        clock: &SharedClock,
    ) -> Result<Arc<ImageFolders>, EngineError> {
        if let Some(known) = cache.folders(self.image.id) {
            return Ok(known);
        }
        let (name, labels) = (self.reader(), labels(self.attempt, &self.folders.root));
        let (name, again) = (&name, &AtomicBool::new(false));
        let look_again = || {
            let labels = labels.clone();
            async move {
                // The engine may have made the container before it went away.
                if again.swap(true, Ordering::Relaxed) {
                    self.engine.remove(name).await?;
                }
                look(self.engine, self.image, name, labels).await
            }
        };
        let looking = Backoff::OUTAGE.retry(clock, "look into an image", look_again);
        let found = Arc::new(looking.await?);
        cache.keep_folders(self.image.id, Arc::clone(&found));
        Ok(found)
    }

    /// Lays out for the job what the image keeps there. Returns the folders as the job gets them: a home that is too
    /// large to be copied stays as the image has it.
    pub(crate) async fn lay_files(
        &self,
        found: Arc<ImageFolders>,
        cache: &EngineCache,
    ) -> Result<Arc<ImageFolders>, LayError> {
        let place = LayPlace {
            folder: self.folders.image_files.clone(),
            bytes: self.policy.allowance.disk,
        };
        let rights = (self.policy.root, self.policy.run_as);
        let (name, labels) = (self.reader(), labels(self.attempt, &self.folders.root));
        let left_out = lay(self.engine, self.image, &found, rights, &place, (&name, labels)).await?;
        if left_out.is_empty() {
            return Ok(found);
        }
        let without = Arc::new(ImageFolders::clone(&found).without_home());
        cache.keep_folders(self.image.id, Arc::clone(&without));
        Ok(without)
    }

    /// Gives the job's own folders to the user that runs its program.
    pub(crate) async fn give_folders(&self, found: &ImageFolders) -> Result<(), LayError> {
        let user = match self.policy.run_as {
            RunAs::Image => found.user(),
            RunAs::Nobody => Some(OwnerIds::NOBODY),
        };
        let Some(user) = user else {
            // The engine refuses to start an image whose user it does not find.
            return Ok(());
        };
        let folders = self.folders;
        let own = [
            &folders.volume,
            &folders.output,
            &folders.specs,
            &folders.artifacts,
            &folders.report,
            &folders.sockets,
            &folders.checkpoint,
        ];
        give_folders(self.engine, user, own.map(PathBuf::clone).to_vec()).await
    }

    fn reader(&self) -> String {
        format!("{}-look", self.container)
    }
}
