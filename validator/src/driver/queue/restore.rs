//! The queue after a restart.

use muster_store::StoreError;

use super::super::miner_choice::unaskable_miners;
use super::keeper::QueueKeeper;

impl QueueKeeper {
    /// Restores the waiting jobs of an earlier process in their order, and ends those that were called off.
    pub(in crate::driver) async fn restore(&self) -> Result<(), StoreError> {
        let store = &self.state.store;
        let metagraph = self.state.subnet.last_metagraph();
        let turns = store.read_turns().await?;
        let attempts = store.attempts_of_waiting().await?;
        let (mut after, mut restored, mut cancelled) = (None, 0_usize, Vec::new());
        loop {
            let page = store.waiting_after(after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.waiting.ticket);
            restored = restored.saturating_add(page.len());
            let mut lines = self.waiting.lock();
            for stored in page {
                let job = stored.waiting.job;
                match stored.cancelled {
                    Some(reason) => cancelled.push((job, reason)),
                    None => {
                        let line = stored.waiting.line;
                        let tried = attempts
                            .get(&job)
                            .map(|attempts| unaskable_miners(line, attempts, metagraph.as_deref()));
                        lines.restore(stored.waiting, tried);
                    }
                }
            }
        }
        {
            let mut lines = self.waiting.lock();
            for (line, account, turn) in turns {
                lines.queue.restore_turn(line, &account, turn);
            }
        }
        for (job, reason) in cancelled {
            self.end_cancelled(job, &reason, attempts.contains_key(&job))
                .await?;
        }
        if restored > 0 {
            tracing::info!(jobs = restored, "restored the queue");
        }
        Ok(())
    }
}
