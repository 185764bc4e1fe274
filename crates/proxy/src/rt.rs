//! hyper's background work, as tasks of ours.

use std::future::Future;

use muster_kit::Tasks;

/// Spawns what hyper asks for under one name.
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    pub(crate) tasks: Tasks,
    pub(crate) name: &'static str,
}

impl<F> hyper::rt::Executor<F> for Spawner
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.tasks.spawn(self.name, future);
    }
}
