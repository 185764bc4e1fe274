//! The times at which a facilitator receives what the subnet offers: soon after a change, and once a minute without
//! one.

use std::time::Duration;

use muster_protocol::Timestamp;
use muster_protocol::wire::muster::CapacityNotice;

/// The shortest time between two notices, and the longest that a change waits.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(3);

/// The time after which a notice that has not changed is sent again. Facilitators leave out older notices than two and
/// a half times this.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// The notices that one connection has brought to the facilitator.
#[derive(Debug)]
pub(crate) struct CapacityReports {
    next_look: Timestamp,
    last: Option<(CapacityNotice, Timestamp)>,
}

impl CapacityReports {
    /// The reports of a connection that begins at `now`.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            next_look: now,
            last: None,
        }
    }

    /// When [`Self::take`] is due.
    pub(crate) fn next_look(&self) -> Timestamp {
        self.next_look
    }

    /// The notice to send now; `None` if the facilitator knows it.
    pub(crate) fn take(&mut self, notice: Option<CapacityNotice>, now: Timestamp) -> Option<CapacityNotice> {
        self.next_look = now.plus(LOOK_EVERY);
        let notice = notice?;
        let is_known = self
            .last
            .as_ref()
            .is_some_and(|(known, at)| *known == notice && now.since(*at) < REPEAT_AFTER);
        if is_known {
            return None;
        }
        self.last = Some((notice.clone(), now));
        Some(notice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_sent_when_it_has_changed_and_once_a_minute() {
        let at = Timestamp::from_secs;
        let mut reports = CapacityReports::new(at(0));
        let empty = CapacityNotice::default();
        let mut other = empty.clone();
        other.limits.job_s = 1;
        assert_eq!(reports.next_look(), at(0));
        assert_eq!(reports.take(None, at(0)), None);
        assert_eq!(reports.next_look(), at(3));
        assert_eq!(reports.take(Some(empty.clone()), at(3)), Some(empty.clone()));
        assert_eq!(reports.take(Some(empty.clone()), at(6)), None);
        assert_eq!(reports.take(Some(other.clone()), at(9)), Some(other.clone()));
        assert_eq!(reports.take(Some(other.clone()), at(68)), None);
        assert_eq!(reports.take(Some(other.clone()), at(69)), Some(other.clone()));
        assert_eq!(reports.take(Some(other), at(72)), None);
    }
}
