//! Facts that one lease learns and the next need not ask for again: a connection to the engine, and the folders of
//! images. Nothing of a job is kept here.

use std::collections::HashMap;
use std::sync::Arc;

use muster_containers::image_folders::ImageFolders;
use muster_containers::{ContainerEngine, EngineError};
use muster_process::{Backoff, SharedClock};
use muster_protocol::ImageId;
use parking_lot::{Mutex, MutexGuard};

/// Images whose folders are kept at once; one more empties the cache. Each takes 128 KiB, or a little more.
const MAX_IMAGES: usize = 256;

/// The cache of one process. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineCache(Arc<Mutex<CachedFacts>>);

#[derive(Debug, Default)]
struct CachedFacts {
    /// The engine that answered last.
    engine: Option<ContainerEngine>,
    /// By the image's content, which does not change: what it keeps in the folders that its jobs may write to.
    folders: HashMap<ImageId, Arc<ImageFolders>>,
}

impl EngineCache {
    /// Returns an engine that answers now.
    ///
    /// # Errors
    /// No engine answers within the time that one takes to be restarted.
    pub(crate) async fn engine(
        &self,
        address: &str,
        clock: &SharedClock,
    ) -> Result<ContainerEngine, EngineError> {
        let known = self.last_engine();
        if let Some(engine) = known
            && engine.ping().await.is_ok()
        {
            return Ok(engine);
        }
        let engine = Backoff::OUTAGE
            .retry(clock, "reach the engine", || ContainerEngine::connect(address))
            .await?;
        self.lock().engine = Some(engine.clone());
        Ok(engine)
    }

    /// The engine that answered last, if one ever did.
    pub(crate) fn last_engine(&self) -> Option<ContainerEngine> {
        self.lock().engine.clone()
    }

    /// The folders of an image that its jobs may write to; `None` if they are not known yet.
    pub(crate) fn folders(&self, image: ImageId) -> Option<Arc<ImageFolders>> {
        self.lock().folders.get(&image).cloned()
    }

    /// Keeps the folders of an image.
    pub(crate) fn keep_folders(&self, image: ImageId, found: Arc<ImageFolders>) {
        let folders = &mut self.lock().folders;
        if folders.len() >= MAX_IMAGES {
            folders.clear();
        }
        folders.insert(image, found);
    }

    fn lock(&self) -> MutexGuard<'_, CachedFacts> {
        self.0.lock()
    }
}
