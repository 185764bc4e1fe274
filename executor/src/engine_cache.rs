//! What one lease learns that the next need not ask again: a connection to the engine, and what images keep at home. Nothing
//! of a job is in here.

use std::collections::HashMap;
use std::sync::Arc;

use muster_containers::{Engine, EngineError};
use muster_process::SharedClock;
use muster_protocol::ImageId;
use parking_lot::{Mutex, MutexGuard};

use crate::retry;

/// Images remembered at once.
const MAX_IMAGES: usize = 1_024;

/// The memory of one process. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    engine: Option<Engine>,
    /// By content, which does not change: the home folder that scratch space may cover, if there is one.
    homes: HashMap<ImageId, Option<String>>,
}

impl Memory {
    /// An engine that answers now.
    ///
    /// # Errors
    /// None does, in the time that one takes to be restarted.
    pub(crate) async fn engine(&self, address: &str, clock: &SharedClock) -> Result<Engine, EngineError> {
        let known = self.known_engine();
        if let Some(engine) = known
            && engine.ping().await.is_ok()
        {
            return Ok(engine);
        }
        let engine = retry::through(clock, "reach the engine", || Engine::connect(address)).await?;
        self.lock().engine = Some(engine.clone());
        Ok(engine)
    }

    /// The engine that answered last, if one ever did.
    pub(crate) fn known_engine(&self) -> Option<Engine> {
        self.lock().engine.clone()
    }

    /// What was learnt of an image's home; `None` if nothing was.
    pub(crate) fn home(&self, image: ImageId) -> Option<Option<String>> {
        self.lock().homes.get(&image).cloned()
    }

    /// Keeps what was learnt.
    pub(crate) fn learn_home(&self, image: ImageId, home: Option<String>) {
        let homes = &mut self.lock().homes;
        if homes.len() >= MAX_IMAGES {
            homes.clear();
        }
        homes.insert(image, home);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }
}
