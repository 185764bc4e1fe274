//! What becomes of a request to write a file: a pure function of the file and of what is asked.

use crate::range::SentPart;

/// What is known of a file when somebody wants to write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileState {
    /// The most that it may have.
    pub bound: u64,
    /// The size that its owner declared.
    pub declared: Option<u64>,
    /// Bytes of an unfinished upload that are durable; `None` where none has begun.
    pub received: Option<u64>,
    /// Bytes of the content that readers get; `None` where there is none yet.
    pub size: Option<u64>,
}

/// What a request wants to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRequest {
    /// All of it. The length is unknown where the request is chunked.
    Whole(Option<u64>),
    /// A part.
    Part(SentPart),
}

/// What to do with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePlan {
    /// Forget an unfinished upload and begin anew; else go on with it.
    pub anew: bool,
    /// Where the first byte lies.
    pub start: u64,
    /// Bytes that must come: no more, and no fewer for the request to succeed. Unknown for a chunked whole.
    pub expected: Option<u64>,
    /// The most that may come.
    pub limit: u64,
    /// Whether the file is whole once these bytes are there.
    pub last: bool,
}

/// Why nothing may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteRejection {
    /// More than the file may have.
    #[error("the file may have at most {bound} bytes")]
    TooLarge {
        /// The most.
        bound: u64,
    },
    /// Another size than was declared.
    #[error("the file was declared to have {declared} bytes, not {asked}")]
    OtherSize {
        /// By its owner.
        declared: u64,
        /// By this request.
        asked: u64,
    },
    /// A part that does not begin where the last one ended.
    #[error("parts come in order: the next one begins at byte {offset}")]
    OutOfOrder {
        /// Where to go on.
        offset: u64,
    },
}

impl FileState {
    /// Where an upload goes on: what is durable of an unfinished one, else all or nothing.
    pub fn offset(&self) -> u64 {
        self.received.or(self.size).unwrap_or_default()
    }

    /// Decides about a request.
    ///
    /// A whole upload always begins anew: an executor whose connection broke sends everything again. What readers get
    /// changes only once the new content is complete.
    ///
    /// # Errors
    /// See [`WriteRejection`].
    pub fn plan(&self, asked: WriteRequest) -> Result<WritePlan, WriteRejection> {
        match asked {
            WriteRequest::Whole(len) => {
                if let Some(len) = len {
                    self.fits(len)?;
                }
                Ok(WritePlan {
                    anew: true,
                    start: 0,
                    expected: len.or(self.declared),
                    limit: self.declared.unwrap_or(self.bound),
                    last: true,
                })
            }
            WriteRequest::Part(part) => self.part(part),
        }
    }

    fn part(&self, part: SentPart) -> Result<WritePlan, WriteRejection> {
        let total = part.total.or(self.declared);
        match total {
            Some(total) => self.fits(total)?,
            None => self.within(part.last.saturating_add(1))?,
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
            anew: part.first == 0,
            start: part.first,
            expected: Some(part.len()),
            limit: part.len(),
            last: total == Some(part.last.saturating_add(1)),
        })
    }

    fn fits(&self, asked: u64) -> Result<(), WriteRejection> {
        if let Some(declared) = self.declared.filter(|declared| *declared != asked) {
            return Err(WriteRejection::OtherSize { declared, asked });
        }
        self.within(asked)
    }

    fn within(&self, asked: u64) -> Result<(), WriteRejection> {
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
        WriteRequest::Part(SentPart { first, last, total })
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
        assert!(plan.anew && plan.last && plan.start == 0 && plan.expected == Some(10));
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
        assert!(!next.anew && !next.last && next.start == 4 && next.limit == 4);
        assert!(file.plan(part(4, 9, None)).unwrap().last, "the size was declared");
        assert!(file.plan(part(0, 3, None)).unwrap().anew);
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
        assert!(done.plan(part(0, 4, None)).unwrap().anew);
    }

    proptest! {
        /// Whatever is asked, nothing is planned beyond the bound or out of order.
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
