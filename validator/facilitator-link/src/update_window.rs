//! The status updates that are on their way to the facilitator over one connection. Pure.

use std::collections::VecDeque;

/// The updates that were sent over one connection, by their numbers in the outbox. The facilitator answers them in
/// their order, so an answer needs no number.
#[derive(Clone, Debug)]
pub struct UpdateWindow {
    most: usize,
    in_flight: VecDeque<i64>,
    last_sent: Option<i64>,
    /// Whether the outbox may hold updates that were not sent on this connection.
    more: bool,
}

impl UpdateWindow {
    /// Updates on their way to a Muster facilitator, at most.
    pub const MUSTER: usize = 64;
    /// Updates on their way to any other facilitator, at most.
    pub const OTHERS: usize = 1;

    /// The window of a new connection, over which at most `most` updates are sent before the first is answered.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            in_flight: VecDeque::new(),
            last_sent: None,
            more: true,
        }
    }

    /// The updates that are to be sent now: the number of the last one sent, and how many behind it at most. `None` if
    /// there is nothing to send, or more answers are waited for. A long window is filled again once half of it is
    /// answered, so that the outbox is read in larger pieces.
    pub fn wanted(&self) -> Option<(Option<i64>, usize)> {
        let room = self.most.saturating_sub(self.in_flight.len());
        (self.more && room > 0 && self.in_flight.len() <= self.most / 2).then_some((self.last_sent, room))
    }

    /// Updates were read from the outbox as [`Self::wanted`] stated.
    pub fn read(&mut self, count: usize) {
        self.more = count > 0;
    }

    /// An update was sent.
    pub fn sent(&mut self, sequence: i64) {
        self.last_sent = Some(sequence);
        self.in_flight.push_back(sequence);
    }

    /// An update was passed over: no connection takes it.
    pub fn skipped(&mut self, sequence: i64) {
        self.last_sent = Some(sequence);
    }

    /// The update that the facilitator's next answer is about; `None` if no update waits for one.
    pub fn answered(&mut self) -> Option<i64> {
        self.in_flight.pop_front()
    }

    /// An update was added to the outbox.
    pub fn note_write(&mut self) {
        self.more = true;
    }

    /// Whether the outbox may hold updates that were not sent on this connection.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Whether no update waits for an answer.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_facilitators_get_one_update_at_a_time() {
        let mut window = UpdateWindow::new(UpdateWindow::OTHERS);
        assert_eq!(window.wanted(), Some((None, 1)));
        window.read(1);
        window.sent(7);
        assert_eq!(window.wanted(), None);
        assert_eq!(window.answered(), Some(7));
        assert_eq!(window.wanted(), Some((Some(7), 1)));
        assert_eq!(window.answered(), None);
    }

    #[test]
    fn a_long_window_is_filled_again_once_half_of_it_is_answered() {
        let mut window = UpdateWindow::new(4);
        window.read(4);
        for sequence in 1..=4 {
            window.sent(sequence);
        }
        assert_eq!((window.answered(), window.wanted()), (Some(1), None));
        assert_eq!(window.answered(), Some(2));
        assert_eq!(window.wanted(), Some((Some(4), 2)));
    }

    #[test]
    fn an_empty_outbox_is_read_again_after_a_write() {
        let mut window = UpdateWindow::new(4);
        window.read(0);
        assert_eq!(window.wanted(), None);
        window.note_write();
        assert_eq!(window.wanted(), Some((None, 4)));
    }

    #[test]
    fn an_update_that_cannot_be_sent_is_passed_over() {
        let mut window = UpdateWindow::new(4);
        window.skipped(3);
        assert!(window.is_empty());
        assert_eq!(window.wanted(), Some((Some(3), 4)));
    }
}
