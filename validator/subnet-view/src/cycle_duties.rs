//! Scoring cycles: which blocks are scored together, and what is due about their weights at a block.
//!
//! A cycle is an epoch of the chain, and its window is the chain's (see [`muster_chain::weights_window`]). In the
//! second half of each cycle, the work that was finished before the cycle is scored, and its weights are set once. A
//! development subnet with a tempo of ten blocks does that every few seconds.

use muster_chain::weights_window::{Window, WindowStatus};
use muster_chain::{BlockNumber, Epoch};

/// Cycles that a score reaches back at most, after missed windows.
const MAX_CYCLES_BACK: u64 = 20;

/// Blocks whose work is scored together, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpan {
    /// The cycle in whose window it is scored.
    pub cycle: Epoch,
    /// The first block.
    pub first: BlockNumber,
    /// The last block: the one before the cycle began.
    pub last: BlockNumber,
}

/// How far this validator has come with a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleProgress {
    /// The span is not scored.
    Untouched,
    /// The span is scored; its weights may or may not have reached the chain.
    Pending {
        /// The last block that may hold a call with the weights whose end is not known: this process or an earlier one
        /// was about to submit it. `None` if no call is on its way.
        on_its_way: Option<BlockNumber>,
    },
    /// The chain took the weights, or a commit to them, in this block.
    Sent(BlockNumber),
    /// The cycle is settled: its weights were kept, missed or lost.
    Settled,
}

/// The next action about a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleAction {
    /// Do nothing before this block.
    Wait(BlockNumber),
    /// Score the span, then send its weights.
    Score,
    /// The span is scored: send its weights.
    Send,
    /// The chain has the weights, and the note of it was lost: note it now.
    Confirm,
    /// The chain had the weights and lost them in a reorganisation: send them again.
    Again,
}

/// The span that is scored while the chain is in `window`; `None` if the window is that of the first cycle.
///
/// `settled_through` is the last block whose work is in weights that were set, or earned nothing. All work since is
/// scored, so that a missed window costs no miner its pay, except work more than twenty cycles old.
pub fn span_to_score(window: &Window, settled_through: Option<BlockNumber>) -> Option<BlockSpan> {
    let last = BlockNumber(window.cycle.0.checked_sub(1)?);
    let length = window.end.0.saturating_sub(window.cycle.0);
    let oldest = window
        .cycle
        .0
        .saturating_sub(length.saturating_mul(MAX_CYCLES_BACK));
    let unsettled = settled_through.map_or(0, |settled| settled.0.saturating_add(1));
    Some(BlockSpan {
        cycle: window.cycle,
        first: BlockNumber(oldest.max(unsettled)),
        last,
    })
}

/// Decides what is due at `block`.
///
/// `last_set` is the block at which the chain last took weights of this validator's, `progress` how far it has come
/// with the span that is scored in this window.
pub fn next_action(
    window: &Window,
    block: BlockNumber,
    last_set: Option<BlockNumber>,
    rate_limit: u64,
    progress: CycleProgress,
) -> CycleAction {
    match (progress, window.due(block, last_set, rate_limit)) {
        (CycleProgress::Pending { .. }, WindowStatus::Done(_)) => CycleAction::Confirm,
        (CycleProgress::Untouched, WindowStatus::Now) => CycleAction::Score,
        // Until that block the chain may still take the call, which each block may show; after it the chain has not.
        (
            CycleProgress::Pending {
                on_its_way: Some(last),
            },
            WindowStatus::Now,
        ) if block <= last => CycleAction::Wait(BlockNumber(block.0.saturating_add(1))),
        (CycleProgress::Pending { .. }, WindowStatus::Now) => CycleAction::Send,
        // The tempo may be changed at any time, so no wait is longer than the cycle.
        (
            CycleProgress::Untouched | CycleProgress::Pending { .. },
            WindowStatus::NotYet(then) | WindowStatus::TooFast(then),
        ) => CycleAction::Wait(then.min(window.end)),
        // An endpoint that has not reached block `at` cannot know of the weights. One that has reached it, and shows
        // older weights, follows a chain that took the block back.
        (CycleProgress::Sent(at), WindowStatus::Now) if block > at => CycleAction::Again,
        (CycleProgress::Sent(_), WindowStatus::Now) => {
            CycleAction::Wait(BlockNumber(block.0.saturating_add(1)))
        }
        (
            CycleProgress::Sent(_),
            WindowStatus::NotYet(_)
            | WindowStatus::Done(_)
            | WindowStatus::TooFast(_)
            | WindowStatus::Missed(_),
        )
        | (CycleProgress::Settled, _)
        | (CycleProgress::Untouched, WindowStatus::Done(_))
        | (CycleProgress::Untouched | CycleProgress::Pending { .. }, WindowStatus::Missed(_)) => {
            CycleAction::Wait(window.end)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: fn(u64) -> BlockNumber = BlockNumber;
    const PENDING: CycleProgress = CycleProgress::Pending { on_its_way: None };

    /// Tempo 10: cycles of eleven blocks, windows from the sixth to the tenth.
    fn window(block: u64) -> Window {
        Window::at(10, AT(0), AT(block))
    }

    fn at(block: u64, last_set: Option<u64>, progress: CycleProgress) -> CycleAction {
        next_action(&window(block), AT(block), last_set.map(AT), 0, progress)
    }

    #[test]
    fn work_before_a_cycle_is_scored_in_the_cycles_second_half() {
        assert_eq!(
            span_to_score(&window(5), None),
            None,
            "nothing lies before the first cycle"
        );
        let span = span_to_score(&window(16), Some(AT(3))).unwrap();
        assert_eq!((span.first, span.last), (AT(4), AT(10)));
        assert_eq!(at(11, None, CycleProgress::Untouched), CycleAction::Wait(AT(16)));
        assert_eq!(at(16, None, CycleProgress::Untouched), CycleAction::Score);
        assert_eq!(at(17, None, PENDING), CycleAction::Send);
        assert_eq!(at(18, Some(17), PENDING), CycleAction::Confirm);
        assert_eq!(
            at(18, Some(17), CycleProgress::Untouched),
            CycleAction::Wait(AT(22)),
            "another process with the same key set them"
        );
        assert_eq!(at(18, None, CycleProgress::Settled), CycleAction::Wait(AT(22)));
        assert_eq!(
            at(21, None, PENDING),
            CycleAction::Wait(AT(22)),
            "its window has closed"
        );
    }

    #[test]
    fn weights_that_the_chain_took_back_are_set_again_within_the_window() {
        let sent = CycleProgress::Sent(AT(17));
        assert_eq!(at(18, Some(17), sent), CycleAction::Wait(AT(22)));
        assert_eq!(
            at(17, Some(5), sent),
            CycleAction::Wait(AT(18)),
            "the endpoint is behind"
        );
        assert_eq!(at(18, Some(5), sent), CycleAction::Again);
        assert_eq!(
            at(21, Some(5), sent),
            CycleAction::Wait(AT(22)),
            "its window has closed"
        );
    }

    #[test]
    fn weights_are_not_sent_again_while_the_chain_may_still_take_the_last_call() {
        let on_its_way = |last| CycleProgress::Pending {
            on_its_way: Some(AT(last)),
        };
        assert_eq!(at(17, None, on_its_way(18)), CycleAction::Wait(AT(18)));
        assert_eq!(at(18, None, on_its_way(18)), CycleAction::Wait(AT(19)));
        assert_eq!(at(19, None, on_its_way(18)), CycleAction::Send);
        assert_eq!(at(18, Some(17), on_its_way(40)), CycleAction::Confirm);
        assert_eq!(at(21, None, on_its_way(40)), CycleAction::Wait(AT(22)));
    }

    #[test]
    fn a_missed_window_is_made_up_for_but_not_for_ever() {
        let span = |block, settled| span_to_score(&window(block), settled).unwrap();
        assert_eq!(span(50, Some(AT(10))).first, AT(11));
        assert_eq!(span(5_000, Some(AT(10))).first, AT(window(5_000).cycle.0 - 220));
    }

    proptest! {
        #[test]
        fn a_validator_that_sees_every_block_scores_every_block_once(
            tempo in 2u16..40, last in 0u64..100, lost_notes: bool, rate_limit in 0u64..60,
        ) {
            let (mut settled, mut set, mut pending) = (None, None, None);
            let mut spans = Vec::<BlockSpan>::new();
            for block in last..last + 900 {
                let window = Window::at(tempo, AT(last), AT(block));
                let Some(span) = span_to_score(&window, settled) else { continue };
                let progress = match pending {
                    _ if settled == Some(span.last) => CycleProgress::Settled,
                    Some(pending) if pending == span.last => PENDING,
                    _ => CycleProgress::Untouched,
                };
                match next_action(&window, AT(block), set.map(AT), rate_limit, progress) {
                    CycleAction::Wait(then) => prop_assert!(then > AT(block)),
                    CycleAction::Score | CycleAction::Send => {
                        spans.push(span);
                        pending = Some(span.last);
                        set = Some(block);
                        if !lost_notes { settled = Some(span.last); }
                    }
                    CycleAction::Confirm => settled = Some(span.last),
                    CycleAction::Again => prop_assert!(false, "nothing was taken back"),
                }
            }
            prop_assert!(spans.len() > 3, "{:?}", spans);
            prop_assert!(spans.windows(2).all(|pair| pair[0].last.0 + 1 == pair[1].first.0), "{:?}", spans);
        }
    }
}
