//! The network of a simulation: connections, their delays, and how they are lost.

use std::time::Duration;

use muster_protocol::Timestamp;

use crate::faults::Fault;
use crate::world::{Frame, Happening, MINERS, Node, World};

/// The number of a connection.
pub(crate) type Line = u64;

/// A connection: whoever dialled is end 0.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) ends: [Node; 2],
    open: [bool; 2],
    /// When the last frame towards each end arrives.
    last: [Timestamp; 2],
    cut: bool,
    /// Frames from end 0 come up to this late on top, in milliseconds.
    lag: u64,
}

/// Nobody on one side reaches the other until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partition {
    between: Sides,
    until: Timestamp,
}

/// The sides of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sides {
    /// A miner and its executors.
    Executors(usize),
    /// A miner and the validator.
    Validator(usize),
}

impl World {
    /// Dials; `None` if nobody answers there.
    pub(crate) fn connect(&mut self, from: Node, to: Node) -> Option<Line> {
        self.life(to)?;
        if self.is_parted(from, to) {
            return None;
        }
        let line = self.next_line;
        self.next_line += 1;
        self.lines.insert(
            line,
            Connection {
                ends: [from, to],
                open: [true, true],
                last: [self.now, self.now],
                cut: false,
                lag: 0,
            },
        );
        let when = self.now.plus(self.latency());
        self.reach(line, 1, when, Happening::Arrive(line));
        Some(line)
    }

    fn latency(&mut self) -> Duration {
        if self.weather.contains_key(&Fault::Delayed) {
            self.dice.millis(200, 1500)
        } else {
            self.dice.millis(1, 60)
        }
    }

    /// Messages in one direction of a connection arrive in order.
    fn reach(&mut self, line: Line, to: usize, when: Timestamp, what: Happening) {
        let Some(last) = self
            .lines
            .get_mut(&line)
            .and_then(|connection| connection.last.get_mut(to))
        else {
            return;
        };
        let when = when.max(*last);
        *last = when;
        self.at(when, what);
    }

    /// Sends from one end of a connection; nothing is reported if it does not get there.
    pub(crate) fn send(&mut self, line: Line, from: usize, frame: Frame) {
        let to = 1 - from;
        let open = self
            .lines
            .get(&line)
            .is_some_and(|connection| connection.open.get(from) == Some(&true));
        if !open {
            return;
        }
        let mut when = self.now.plus(self.latency());
        let lag = self.lines.get(&line).map_or(0, |connection| connection.lag);
        if lag > 0 && from == 0 {
            when = when.plus(self.dice.millis(0, lag));
        }
        if self.weather.contains_key(&Fault::Duplicated) && self.dice.one_in(2) {
            let again = when.plus(self.latency());
            let frame = frame.clone();
            self.at(again, Happening::Deliver { line, to, frame });
        }
        if self.weather.contains_key(&Fault::Reordered) && self.dice.one_in(2) {
            // Past those that were sent before it and after it.
            when = when.plus(self.dice.millis(0, 400));
            return self.at(when, Happening::Deliver { line, to, frame });
        }
        self.reach(line, to, when, Happening::Deliver { line, to, frame });
    }

    fn end(&self, line: Line, at: usize) -> Option<Node> {
        let connection = self.lines.get(&line)?;
        let open = connection.open.get(at) == Some(&true);
        let node = *connection.ends.get(at)?;
        (open && self.life(node).is_some()).then_some(node)
    }

    pub(crate) fn arrived(&mut self, line: Line) {
        let cut = self.lines.get(&line).is_none_or(|connection| connection.cut);
        match self.end(line, 1).filter(|_| !cut) {
            Some(Node::Facilitator) => self.facilitator_notices(line),
            Some(Node::Miner(index)) => self.miner_notices(index, line),
            Some(Node::Validator | Node::Executor(_)) | None => {}
        }
    }

    pub(crate) fn delivered(&mut self, line: Line, to: usize, frame: Frame) {
        if self.lines.get(&line).is_none_or(|connection| connection.cut) {
            return;
        }
        match self.end(line, to) {
            Some(Node::Facilitator) => self.facilitator_receives(line, frame),
            Some(Node::Validator) => self.validator_receives(line, frame),
            Some(Node::Miner(index)) => self.miner_receives(index, line, frame),
            Some(Node::Executor(id)) => self.executor_receives(id, line, frame),
            None => {}
        }
    }

    /// One end closes; the other learns of it.
    pub(crate) fn close(&mut self, line: Line, from: usize) {
        let Some(connection) = self.lines.get_mut(&line) else {
            return;
        };
        if let Some(open) = connection.open.get_mut(from) {
            *open = false;
        }
        let when = self.now.plus(self.dice.millis(1, 20));
        self.reach(line, 1 - from, when, Happening::Closed { line, at: 1 - from });
    }

    /// The network takes a connection away; the ends find out each in its own time.
    pub(crate) fn cut(&mut self, line: Line) {
        if let Some(connection) = self.lines.get_mut(&line) {
            connection.cut = true;
        }
        for at in [0, 1] {
            let span = self.dice.millis(1, 5000);
            self.after(span, Happening::Closed { line, at });
        }
    }

    /// One executor's connection breaks at the executor first. The miner's end stays open, and receives late what was
    /// sent before.
    pub(crate) fn half_open(&mut self) {
        let live = self.lines.iter().filter(|(_, connection)| {
            matches!(connection.ends, [Node::Executor(_), Node::Miner(_)]) && connection.open == [true; 2]
        });
        let live: Vec<_> = live.map(|(line, _)| *line).collect();
        let chosen = usize::try_from(self.dice.below(live.len() as u64)).unwrap_or_default();
        let Some(line) = live.get(chosen).copied() else {
            return;
        };
        if let Some(connection) = self.lines.get_mut(&line) {
            connection.lag = 10_000;
        }
        let soon = self.dice.millis(1, 6000);
        self.after(soon, Happening::Closed { line, at: 0 });
        let late = self.dice.millis(15_000, 60_000);
        self.after(late, Happening::Closed { line, at: 1 });
    }

    /// The miner closes a connection whose executor came back over another one. Reports that it has read before are
    /// still on their way to the lease.
    pub(crate) fn replace_line(&mut self, line: Line) {
        let soon = self.dice.millis(1, 2000);
        self.after(soon, Happening::Closed { line, at: 1 });
        self.after(soon.saturating_mul(2), Happening::Closed { line, at: 0 });
    }

    /// Parts a miner from its executors or from the validator for this long.
    pub(crate) fn part(&mut self, lasts: Duration) {
        let miner = usize::try_from(self.dice.below(MINERS as u64)).unwrap_or_default();
        let between = if self.dice.one_in(2) {
            Sides::Executors(miner)
        } else {
            Sides::Validator(miner)
        };
        let until = self.now.plus(lasts);
        self.partitions.push(Partition { between, until });
        let lines: Vec<_> = self
            .lines
            .iter()
            .filter(|(_, connection)| connection.open != [false; 2])
            .map(|(line, connection)| (*line, connection.ends))
            .collect();
        for (line, [from, to]) in lines {
            if self.is_parted(from, to) {
                self.cut(line);
            }
        }
    }

    fn is_parted(&self, from: Node, to: Node) -> bool {
        let sides = match (from, to) {
            (Node::Executor(_), Node::Miner(miner)) => Sides::Executors(miner),
            (Node::Validator, Node::Miner(miner)) => Sides::Validator(miner),
            _ => return false,
        };
        let mut partitions = self.partitions.iter();
        partitions.any(|parted| parted.between == sides && self.now < parted.until)
    }

    pub(crate) fn closed(&mut self, line: Line, at: usize) {
        let Some(node) = self.end(line, at) else { return };
        if let Some(open) = self
            .lines
            .get_mut(&line)
            .and_then(|connection| connection.open.get_mut(at))
        {
            *open = false;
        }
        match node {
            Node::Facilitator => self.facilitator_loses(line),
            Node::Validator => self.validator_loses(line),
            Node::Miner(index) => self.miner_loses(index, line),
            Node::Executor(id) => self.executor_loses(id, line),
        }
    }
}
