//! What users and operators are told about the queue.

use muster_protocol::JobId;

use super::super::JobDrivers;

impl JobDrivers {
    /// Tells the facilitator the place of a job in its line.
    pub(super) fn tell_position(&self, job: JobId) {
        let position = self.waiting.lock().queue.position(job);
        tracing::debug!(%job, ?position, "the job waits");
    }
}
