//! Runs numbered pieces of work on several threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ProverError, ProverPhase, WorkObserver};

/// Does `work` for every number below `count` and returns the results in order. `scratch` is made once per thread.
///
/// All threads have ended when this returns. A cancelled run finishes the pieces that have begun.
pub(super) fn run_numbered<S, R: Send>(
    threads: NonZeroUsize,
    count: u64,
    (part, watch): (ProverPhase, &dyn WorkObserver),
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, u64) -> Result<R, ProverError> + Sync,
) -> Result<Vec<R>, ProverError> {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let worker = || {
        let mut mine = Vec::new();
        let mut room = scratch();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(mine);
            }
            if watch.is_cancelled() {
                return Err(ProverError::Cancelled);
            }
            match work(&mut room, number) {
                Ok(result) => mine.push((number, result)),
                Err(error) => {
                    // The other threads start no further piece.
                    next.fetch_max(count, Ordering::Relaxed);
                    return Err(error);
                }
            }
            watch.report_progress(part, done.fetch_add(1, Ordering::Relaxed) + 1, count);
        }
    };
    let mut all = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.get()).map(|_| scope.spawn(worker)).collect();
        let mut all = worker();
        for other in others {
            let theirs = match other.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            match (&mut all, theirs) {
                (Ok(ours), Ok(theirs)) => ours.extend(theirs),
                (Ok(_), Err(error)) => all = Err(error),
                (Err(_), _) => {}
            }
        }
        all
    })?;
    all.sort_unstable_by_key(|(number, _)| *number);
    Ok(all.into_iter().map(|(_, result)| result).collect())
}
