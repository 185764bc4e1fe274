//! Scoring cycles: which blocks are scored, and what is to be done about their weights at a block.
//!
//! A cycle is an epoch of the chain, and its window is the chain's (see [`muster_chain::window`]): in the second half of
//! each cycle the work that was finished before it began is scored, and its weights are set once. A development subnet
//! with a tempo of ten blocks does that every few seconds.

use muster_chain::window::{Due, Window};
use muster_chain::{BlockNumber, Epoch};

/// Cycles that a score reaches back at most, if the windows before were missed.
const MAX_CYCLES_BACK: u64 = 20;

/// Blocks whose work is scored together, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The cycle in whose window it is scored.
    pub cycle: Epoch,
    /// The first block.
    pub first: BlockNumber,
    /// The last block: the one before the cycle began.
    pub last: BlockNumber,
}

/// What this validator has done about a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing yet.
    Untouched,
    /// It is scored; its weights may or may not have reached the chain.
    Pending,
    /// The chain took its weights, or a commit to them, in this block.
    Sent(BlockNumber),
    /// It is settled: kept, missed, or lost.
    Settled,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Nothing before this block.
    Wait(BlockNumber),
    /// Score the span, then set its weights.
    Score,
    /// It is scored: set its weights.
    Send,
    /// The chain has them; only our own note of that was lost.
    Confirm,
    /// The chain had them and has them no more: set them again.
    Again,
}

/// What is scored while the chain is in `window`; `None` if nothing lies before it.
///
/// `settled_through` is the last block whose work is in weights that were set, or was found to be none. Everything since
/// is scored, so that a window that was missed costs no miner its pay, but not work so old that it says nothing any more.
pub fn scored_in(window: &Window, settled_through: Option<BlockNumber>) -> Option<Span> {
    let last = BlockNumber(window.cycle.0.checked_sub(1)?);
    let length = window.end.0.saturating_sub(window.cycle.0);
    let oldest = window
        .cycle
        .0
        .saturating_sub(length.saturating_mul(MAX_CYCLES_BACK));
    let unsettled = settled_through.map_or(0, |settled| settled.0.saturating_add(1));
    Some(Span {
        cycle: window.cycle,
        first: BlockNumber(oldest.max(unsettled)),
        last,
    })
}

/// Decides at `block`.
///
/// `last_set` is the block at which the chain last took weights of ours, `progress` what we have done about the span that
/// is scored in this window.
pub fn todo(
    window: &Window,
    block: BlockNumber,
    last_set: Option<BlockNumber>,
    rate_limit: u64,
    progress: Progress,
) -> Todo {
    match (progress, window.due(block, last_set, rate_limit)) {
        (Progress::Pending, Due::Done(_)) => Todo::Confirm,
        (Progress::Untouched, Due::Now) => Todo::Score,
        (Progress::Pending, Due::Now) => Todo::Send,
        // The tempo may be changed at any time, so no wait is longer than the cycle.
        (Progress::Untouched | Progress::Pending, Due::NotYet(then) | Due::TooFast(then)) => {
            Todo::Wait(then.min(window.end))
        }
        // An endpoint that has not come to that block yet cannot know of it. One that has, and shows older weights, follows
        // a chain that took the block back.
        (Progress::Sent(at), Due::Now) if block > at => Todo::Again,
        (Progress::Sent(_), Due::Now) => Todo::Wait(BlockNumber(block.0.saturating_add(1))),
        (Progress::Sent(_), Due::NotYet(_) | Due::Done(_) | Due::TooFast(_) | Due::Missed(_))
        | (Progress::Settled, _)
        | (Progress::Untouched, Due::Done(_))
        | (Progress::Untouched | Progress::Pending, Due::Missed(_)) => Todo::Wait(window.end),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: fn(u64) -> BlockNumber = BlockNumber;

    /// Tempo 10: cycles of eleven blocks, windows from the sixth to the tenth.
    fn window(block: u64) -> Window {
        Window::at(10, AT(0), AT(block))
    }

    fn at(block: u64, last_set: Option<u64>, progress: Progress) -> Todo {
        todo(&window(block), AT(block), last_set.map(AT), 0, progress)
    }

    #[test]
    fn what_was_done_before_a_cycle_is_scored_in_its_second_half() {
        assert_eq!(
            scored_in(&window(5), None),
            None,
            "nothing lies before the first cycle"
        );
        let span = scored_in(&window(16), Some(AT(3))).unwrap();
        assert_eq!((span.first, span.last), (AT(4), AT(10)));
        assert_eq!(at(11, None, Progress::Untouched), Todo::Wait(AT(16)));
        assert_eq!(at(16, None, Progress::Untouched), Todo::Score);
        assert_eq!(at(17, None, Progress::Pending), Todo::Send);
        assert_eq!(at(18, Some(17), Progress::Pending), Todo::Confirm);
        assert_eq!(
            at(18, Some(17), Progress::Untouched),
            Todo::Wait(AT(22)),
            "another process of ours set them"
        );
        assert_eq!(at(18, None, Progress::Settled), Todo::Wait(AT(22)));
        assert_eq!(
            at(21, None, Progress::Pending),
            Todo::Wait(AT(22)),
            "its window has closed"
        );
    }

    #[test]
    fn weights_that_the_chain_took_back_are_set_again_within_the_window() {
        let sent = Progress::Sent(AT(17));
        assert_eq!(at(18, Some(17), sent), Todo::Wait(AT(22)));
        assert_eq!(
            at(17, Some(5), sent),
            Todo::Wait(AT(18)),
            "the endpoint is behind"
        );
        assert_eq!(at(18, Some(5), sent), Todo::Again);
        assert_eq!(at(21, Some(5), sent), Todo::Wait(AT(22)), "its window has closed");
    }

    #[test]
    fn a_missed_window_is_made_up_for_but_not_for_ever() {
        let span = |block, settled| scored_in(&window(block), settled).unwrap();
        assert_eq!(span(50, Some(AT(10))).first, AT(11));
        assert_eq!(span(5_000, Some(AT(10))).first, AT(window(5_000).cycle.0 - 220));
    }

    proptest! {
        #[test]
        fn a_validator_that_sees_every_block_scores_every_block_once(
            tempo in 2u16..40, last in 0u64..100, lost_notes: bool, rate_limit in 0u64..60,
        ) {
            let (mut settled, mut set, mut pending) = (None, None, None);
            let mut spans = Vec::<Span>::new();
            for block in last..last + 900 {
                let window = Window::at(tempo, AT(last), AT(block));
                let Some(span) = scored_in(&window, settled) else { continue };
                let progress = match pending {
                    _ if settled == Some(span.last) => Progress::Settled,
                    Some(pending) if pending == span.last => Progress::Pending,
                    _ => Progress::Untouched,
                };
                match todo(&window, AT(block), set.map(AT), rate_limit, progress) {
                    Todo::Wait(then) => prop_assert!(then > AT(block)),
                    Todo::Score | Todo::Send => {
                        spans.push(span);
                        pending = Some(span.last);
                        set = Some(block);
                        if !lost_notes { settled = Some(span.last); }
                    }
                    Todo::Confirm => settled = Some(span.last),
                    Todo::Again => prop_assert!(false, "nothing was taken back"),
                }
            }
            prop_assert!(spans.len() > 3, "{:?}", spans);
            prop_assert!(spans.windows(2).all(|pair| pair[0].last.0 + 1 == pair[1].first.0), "{:?}", spans);
        }
    }
}
