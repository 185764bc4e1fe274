//! Decides about a request to write a file. Pure.

use muster_http::range::ContentRange;

/// The facts about a file that the decision needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileState {
    /// The largest allowed size in bytes.
    pub bound: u64,
    /// The size in bytes that its owner declared.
    pub declared: Option<u64>,
    /// The durable bytes of an unfinished upload; `None` if there is none.
    pub received: Option<u64>,
    /// The size of the content that readers get; `None` if there is none yet.
    pub size: Option<u64>,
}

/// The bytes that a request wants to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRequest {
    /// The whole file. The length is unknown if the request is chunked.
    Whole(Option<u64>),
    /// A part of the file.
    Part(ContentRange),
}

/// The plan for a request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePlan {
    /// Whether to discard an unfinished upload and start a new one, instead of continuing it.
    pub start_over: bool,
    /// The offset of the first byte.
    pub start: u64,
    /// The exact number of bytes that the request must send; `None` for a chunked whole of unknown size.
    pub expected: Option<u64>,
    /// The most bytes that the request may send.
    pub limit: u64,
    /// Whether these bytes complete the file.
    pub last: bool,
}

/// The reason why a request to write is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteRejection {
    /// The file would exceed its largest allowed size.
    #[error("the file may have at most {bound} bytes")]
    TooLarge {
        /// The largest allowed size in bytes.
        bound: u64,
    },
    /// The request has another size than the owner declared.
    #[error("the file was declared to have {declared} bytes, not {asked}")]
    OtherSize {
        /// The size in bytes that the owner declared.
        declared: u64,
        /// The size in bytes of the request.
        asked: u64,
    },
    /// The part does not begin where the last one ended.
    #[error("parts come in order: the next one begins at byte {offset}")]
    OutOfOrder {
        /// The offset at which the next part must begin.
        offset: u64,
    },
}

impl FileState {
    /// The offset at which an upload continues: the durable bytes of an unfinished one, else the size of the content,
    /// else 0.
    pub fn offset(&self) -> u64 {
        self.received.or(self.size).unwrap_or_default()
    }

    /// Decides about a request.
    ///
    /// An upload of the whole file always starts over, because an executor whose connection broke sends everything
    /// again. Readers get the old content until the new one is complete.
    ///
    /// # Errors
    /// See [`WriteRejection`].
    pub fn plan(&self, asked: WriteRequest) -> Result<WritePlan, WriteRejection> {
        match asked {
            WriteRequest::Whole(len) => {
                if let Some(len) = len {
                    self.check_size(len)?;
                }
                Ok(WritePlan {
                    start_over: true,
                    start: 0,
                    expected: len.or(self.declared),
                    limit: self.declared.unwrap_or(self.bound),
                    last: true,
                })
            }
            WriteRequest::Part(part) => self.plan_part(part),
        }
    }

    fn plan_part(&self, part: ContentRange) -> Result<WritePlan, WriteRejection> {
        let total = part.total.or(self.declared);
        match total {
            Some(total) => self.check_size(total)?,
            None => self.check_bound(part.last.saturating_add(1))?,
        }
        if total.is_some_and(|total| part.last >= total) {
            return Err(WriteRejection::OtherSize {
                declared: total.unwrap_or_default(),
                asked: part.last.saturating_add(1),
            });
        }
        let received = self.received.unwrap_or_default();
        if part.first != 0 && part.first != received {
            return Err(WriteRejection::OutOfOrder {
                offset: self.offset(),
            });
        }
        Ok(WritePlan {
            start_over: part.first == 0,
            start: part.first,
            expected: Some(part.len()),
            limit: part.len(),
            last: total == Some(part.last.saturating_add(1)),
        })
    }

    fn check_size(&self, asked: u64) -> Result<(), WriteRejection> {
        if let Some(declared) = self.declared.filter(|declared| *declared != asked) {
            return Err(WriteRejection::OtherSize { declared, asked });
        }
        self.check_bound(asked)
    }

    fn check_bound(&self, asked: u64) -> Result<(), WriteRejection> {
        let bound = self.bound;
        if asked > bound {
            return Err(WriteRejection::TooLarge { bound });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(first: u64, last: u64, total: Option<u64>) -> WriteRequest {
        WriteRequest::Part(ContentRange { first, last, total })
    }

    #[test]
    fn a_whole_upload_begins_anew_and_keeps_to_its_size() {
        let declared = FileState {
            bound: 10,
            declared: Some(10),
            received: Some(4),
            size: None,
        };
        let plan = declared.plan(WriteRequest::Whole(Some(10))).unwrap();
        assert!(plan.start_over && plan.last && plan.start == 0 && plan.expected == Some(10));
        assert_eq!(
            declared.plan(WriteRequest::Whole(Some(9))),
            Err(WriteRejection::OtherSize {
                declared: 10,
                asked: 9
            })
        );
        let open = FileState {
            bound: 10,
            ..FileState::default()
        };
        assert_eq!(
            open.plan(WriteRequest::Whole(Some(11))),
            Err(WriteRejection::TooLarge { bound: 10 })
        );
        let chunked = open.plan(WriteRequest::Whole(None)).unwrap();
        assert_eq!((chunked.expected, chunked.limit), (None, 10));
        assert_eq!(
            declared.plan(WriteRequest::Whole(None)).unwrap().expected,
            Some(10)
        );
    }

    #[test]
    fn parts_come_in_order_and_the_last_one_is_known() {
        let file = FileState {
            bound: 100,
            declared: Some(10),
            received: Some(4),
            size: None,
        };
        let next = file.plan(part(4, 7, Some(10))).unwrap();
        assert!(!next.start_over && !next.last && next.start == 4 && next.limit == 4);
        assert!(file.plan(part(4, 9, None)).unwrap().last, "the size was declared");
        assert!(file.plan(part(0, 3, None)).unwrap().start_over);
        assert_eq!(
            file.plan(part(5, 9, None)),
            Err(WriteRejection::OutOfOrder { offset: 4 })
        );
        assert_eq!(
            file.plan(part(4, 7, Some(8))),
            Err(WriteRejection::OtherSize {
                declared: 10,
                asked: 8
            })
        );
        assert!(matches!(
            file.plan(part(4, 10, None)),
            Err(WriteRejection::OtherSize { .. })
        ));
        let open = FileState {
            bound: 10,
            ..FileState::default()
        };
        assert!(!open.plan(part(0, 3, None)).unwrap().last);
        assert!(open.plan(part(0, 3, Some(4))).unwrap().last);
        assert_eq!(
            open.plan(part(0, 10, None)),
            Err(WriteRejection::TooLarge { bound: 10 })
        );
    }

    #[test]
    fn a_finished_file_says_that_it_is_all_there() {
        let done = FileState {
            bound: 10,
            size: Some(7),
            ..FileState::default()
        };
        assert_eq!(done.offset(), 7);
        assert_eq!(
            done.plan(part(3, 4, None)),
            Err(WriteRejection::OutOfOrder { offset: 7 })
        );
        assert!(done.plan(part(0, 4, None)).unwrap().start_over);
    }

    proptest! {
        /// No plan exceeds the bound or is out of order.
        #[test]
        fn no_plan_leaves_the_bound(
            bound in 0_u64..50, declared in proptest::option::of(0_u64..50), received in proptest::option::of(0_u64..50),
            first in 0_u64..60, more in 0_u64..60, total in proptest::option::of(0_u64..120), whole: bool,
        ) {
            let declared = declared.filter(|declared| *declared <= bound);
            let state = FileState { bound, declared, received, size: None };
            let last = first + more;
            let asked = if whole {
                WriteRequest::Whole(total)
            } else if total.is_none_or(|total| last < total) {
                part(first, last, total)
            } else {
                return Ok(());
            };
            if let Ok(plan) = state.plan(asked) {
                prop_assert!(plan.start + plan.limit <= bound);
                prop_assert!(plan.expected.is_none_or(|expected| expected <= plan.limit));
                prop_assert!(plan.start == 0 || Some(plan.start) == received);
                if let (true, Some(declared), Some(expected)) = (plan.last, declared, plan.expected) {
                    prop_assert_eq!(plan.start + expected, declared);
                }
            }
        }
    }
}
