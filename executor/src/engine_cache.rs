//! Facts that one lease learns and the next need not ask for again: a connection to the engine, and the home folders of
//! images. Nothing of a job is kept here.

use std::collections::HashMap;
use std::sync::Arc;

use muster_containers::{ContainerEngine, EngineError};
use muster_process::{Backoff, SharedClock};
use muster_protocol::ImageId;
use parking_lot::{Mutex, MutexGuard};

/// Home folders kept at once; one more empties the cache.
const MAX_IMAGES: usize = 1_024;

/// The cache of one process. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineCache(Arc<Mutex<CachedFacts>>);

#[derive(Debug, Default)]
struct CachedFacts {
    /// The engine that answered last.
    engine: Option<ContainerEngine>,
    /// By the image's content, which does not change: the home folder that a tmpfs may cover, if there is one.
    homes: HashMap<ImageId, Option<String>>,
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

    /// The home folder of an image; `None` if it is not known yet.
    pub(crate) fn home(&self, image: ImageId) -> Option<Option<String>> {
        self.lock().homes.get(&image).cloned()
    }

    /// Keeps the home folder of an image.
    pub(crate) fn keep_home(&self, image: ImageId, home: Option<String>) {
        let homes = &mut self.lock().homes;
        if homes.len() >= MAX_IMAGES {
            homes.clear();
        }
        homes.insert(image, home);
    }

    fn lock(&self) -> MutexGuard<'_, CachedFacts> {
        self.0.lock()
    }
}
