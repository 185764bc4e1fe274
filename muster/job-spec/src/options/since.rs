//! The option `--since` of `muster job logs`.

use std::time::Duration;

use muster_protocol::Timestamp;

use crate::options::duration;

/// The time from which output is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// This long before now.
    Ago(Duration),
    /// A time by the facilitator's clock.
    At(Timestamp),
}

/// Reads a time as docker does: `10m` or `1h30m` before now, `2026-01-02T03:04:05Z`, or seconds since 1970.
///
/// # Errors
/// The text is none of them.
pub fn read_since(text: &str) -> Result<Since, String> {
    let unread =
        || format!("write 10m, 1h30m, 2026-01-02T03:04:05Z, or the seconds since 1970, instead of {text:?}");
    if text.contains('T') {
        return text.parse().map(Since::At).map_err(|_| unread());
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = text.parse().map_err(|_| unread())?;
        return Ok(Since::At(Timestamp::from_secs(seconds)));
    }
    duration(text).map(Since::Ago).map_err(|_| unread())
}

impl Since {
    /// The time that is meant now.
    pub fn begin(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Ago(duration) => now.minus(duration),
            Self::At(time) => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_docker_reads_them() {
        let ago = |seconds| Ok(Since::Ago(Duration::from_secs(seconds)));
        for (text, since) in [
            ("10m", ago(600)),
            ("42s", ago(42)),
            ("1h30m", ago(5_400)),
            ("1d", ago(86_400)),
            ("0001h1s", ago(3_601)),
            ("1769000000", Ok(Since::At(Timestamp::from_secs(1_769_000_000)))),
            (
                "2026-01-21T12:53:20Z",
                Ok(Since::At(Timestamp::from_secs(1_769_000_000))),
            ),
            (
                "2026-01-21T13:53:20+01:00",
                Ok(Since::At(Timestamp::from_secs(1_769_000_000))),
            ),
        ] {
            assert_eq!(read_since(text), since, "{text}");
        }
        for bad in [
            "",
            "m",
            "1h30",
            "-5m",
            "yesterday",
            "2026-01-21",
            "2026-01-21T12:53:20",
            "9e9",
        ] {
            assert!(read_since(bad).is_err(), "{bad}");
        }
        let now = Timestamp::from_secs(1_000);
        assert_eq!(read_since("10m").unwrap().begin(now), Timestamp::from_secs(400));
        assert_eq!(read_since("5").unwrap().begin(now), Timestamp::from_secs(5));
    }
}
