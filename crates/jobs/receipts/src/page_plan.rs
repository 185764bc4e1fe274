//! Plans which pages of a miner to read, and from which byte on.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::Timestamp;
use muster_protocol::receipt::{PAGE_SECS, page_of};

use crate::page_lines::CutLines;

/// The most bytes of one page that are read. A busy miner of a hundred executors writes a tenth of it.
pub const MAX_PAGE: u64 = 64 * 1024 * 1024;

/// The progress of reading a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCursor {
    /// The first byte that has not been read; the start of a line.
    pub offset: u64,
    /// Whether nothing more can be read of the page.
    pub settled: bool,
}

/// A request to a miner for a part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The number of the page.
    pub page: i64,
    /// The part that is asked for.
    pub form: PagePart,
}

/// A part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagePart {
    /// The page from this byte on: it still grows, or was read in part.
    From(u64),
    /// The whole of a page that grows no more, compressed if the miner has it so.
    Archive,
}

/// The two pages that still grow.
pub fn growing_pages(now: Timestamp) -> [i64; 2] {
    let page = page_of(now);
    [page, page.saturating_sub(1)]
}

/// The next requests to a miner: the pages that grow, then, newest first, older pages that were not read to their end.
pub fn plan_requests(
    now: Timestamp,
    cursors: &BTreeMap<i64, PageCursor>,
    catch_up: Duration,
) -> Vec<PageRequest> {
    let newest = page_of(now);
    let back = i64::try_from(catch_up.as_secs()).unwrap_or(i64::MAX) / PAGE_SECS;
    let oldest = newest.saturating_sub(back.max(1));
    let ask = |page| {
        let cursor = cursors.get(&page).copied().unwrap_or_default();
        let grows = growing_pages(now).contains(&page);
        let form = match cursor.offset {
            _ if cursor.settled => return None,
            0 if !grows => PagePart::Archive,
            offset => PagePart::From(offset),
        };
        Some(PageRequest { page, form })
    };
    (oldest..=newest).rev().filter_map(ask).collect()
}

/// The progress of a page once the piece from `cursor` on has been cut. `whole` states that the miner had no
/// more bytes.
pub fn advance_cursor(
    now: Timestamp,
    page: i64,
    cursor: PageCursor,
    cut: &CutLines,
    whole: bool,
) -> PageCursor {
    let offset = cursor.offset.saturating_add(cut.used);
    let grows = growing_pages(now).contains(&page);
    PageCursor {
        offset,
        settled: cut.endless || offset >= MAX_PAGE || (whole && !grows),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_secs(1_769_000_100)
    }

    #[test]
    fn pages_that_grow_are_read_on_and_old_ones_are_caught_up_once() {
        let page = page_of(now());
        let hours = Duration::from_secs(1_200);
        let fresh = plan_requests(now(), &BTreeMap::new(), hours);
        assert_eq!(
            fresh,
            [
                PageRequest {
                    page,
                    form: PagePart::From(0)
                },
                PageRequest {
                    page: page - 1,
                    form: PagePart::From(0)
                },
                PageRequest {
                    page: page - 2,
                    form: PagePart::Archive
                },
                PageRequest {
                    page: page - 3,
                    form: PagePart::Archive
                },
                PageRequest {
                    page: page - 4,
                    form: PagePart::Archive
                },
            ]
        );
        let cursors = [
            (
                page,
                PageCursor {
                    offset: 7,
                    settled: false,
                },
            ),
            (
                page - 2,
                PageCursor {
                    offset: 9,
                    settled: false,
                },
            ),
            (
                page - 3,
                PageCursor {
                    offset: 0,
                    settled: true,
                },
            ),
        ]
        .into();
        let later = plan_requests(now(), &cursors, hours);
        assert_eq!(
            later
                .iter()
                .map(|ask| (page - ask.page, ask.form))
                .collect::<Vec<_>>(),
            [
                (0, PagePart::From(7)),
                (1, PagePart::From(0)),
                (2, PagePart::From(9)),
                (4, PagePart::Archive)
            ]
        );
    }

    #[test]
    fn a_page_is_settled_when_it_cannot_grow_or_is_beyond_bounds() {
        let page = page_of(now());
        let cut = |used, endless| CutLines {
            used,
            endless,
            ..CutLines::default()
        };
        let at = |page, cut: &CutLines, whole| {
            advance_cursor(
                now(),
                page,
                PageCursor {
                    offset: 10,
                    settled: false,
                },
                cut,
                whole,
            )
        };
        assert_eq!(
            at(page, &cut(5, false), true),
            PageCursor {
                offset: 15,
                settled: false
            }
        );
        assert_eq!(
            at(page - 2, &cut(5, false), true),
            PageCursor {
                offset: 15,
                settled: true
            }
        );
        assert_eq!(
            at(page - 2, &cut(5, false), false),
            PageCursor {
                offset: 15,
                settled: false
            }
        );
        assert!(at(page, &cut(0, true), false).settled, "a line without end");
        assert!(at(page, &cut(MAX_PAGE, false), false).settled);
    }

    proptest! {
        #[test]
        fn nothing_settled_is_asked_for_and_nothing_is_asked_twice(
            known in proptest::collection::btree_map(-70i64..3, (0u64..9, any::<bool>()), 0..30), secs in 0u64..20_000,
        ) {
            let page = page_of(now());
            let cursors: BTreeMap<_, _> = known.into_iter()
                .map(|(back, (offset, settled))| (page + back, PageCursor { offset, settled })).collect();
            let asks = plan_requests(now(), &cursors, Duration::from_secs(secs));
            prop_assert!(asks.windows(2).all(|pair| pair[0].page > pair[1].page));
            for ask in asks {
                prop_assert!(ask.page <= page);
                prop_assert!(!cursors.get(&ask.page).is_some_and(|cursor| cursor.settled));
            }
        }
    }
}
