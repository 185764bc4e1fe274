//! The lines of the queue: one for each class of executor, and beside it one for the trusted miner.

use std::fmt;
use std::str::FromStr;

use muster_protocol::ExecutorClass;

/// The stored name of a line for the trusted miner is the class behind this.
const TRUSTED: &str = "trusted:";

/// A line of jobs that wait for the same executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorLine {
    /// The class of executor that the line waits for.
    pub class: ExecutorClass,
    /// Whether it waits for the trusted miner and not for one of the subnet.
    pub on_trusted_miner: bool,
}

/// A text is not the name of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no line of the queue has that name")]
pub struct UnknownLine;

impl ExecutorLine {
    /// The line for the miners of the subnet.
    pub fn of_subnet(class: ExecutorClass) -> Self {
        Self {
            class,
            on_trusted_miner: false,
        }
    }
}

impl From<ExecutorClass> for ExecutorLine {
    fn from(class: ExecutorClass) -> Self {
        Self::of_subnet(class)
    }
}

impl fmt::Display for ExecutorLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.on_trusted_miner { TRUSTED } else { "" };
        write!(f, "{place}{}", self.class)
    }
}

impl FromStr for ExecutorLine {
    type Err = UnknownLine;

    fn from_str(name: &str) -> Result<Self, UnknownLine> {
        let (class, on_trusted_miner) = match name.strip_prefix(TRUSTED) {
            Some(class) => (class, true),
            None => (name, false),
        };
        let class = class.parse().map_err(|_| UnknownLine)?;
        Ok(Self {
            class,
            on_trusted_miner,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_name_of_its_own_that_reads_back() {
        for class in ExecutorClass::ALL {
            let line = ExecutorLine::of_subnet(class);
            assert_eq!(line.to_string(), class.as_str());
            let trusted = ExecutorLine {
                on_trusted_miner: true,
                ..line
            };
            for line in [line, trusted] {
                assert_eq!(line.to_string().parse(), Ok(line));
            }
            assert_ne!(line.to_string(), trusted.to_string());
        }
        assert_eq!("trusted:".parse::<ExecutorLine>(), Err(UnknownLine));
        assert_eq!(
            "trusted:trusted:always_on.test".parse::<ExecutorLine>(),
            Err(UnknownLine)
        );
    }
}
