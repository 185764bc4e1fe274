//! Points in time in the text form of the wire.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Datelike, Timelike, Utc};

use crate::macros::serde_as_text;

/// The text is not an RFC 3339 time with a time zone, or its year lies outside 1970 to 9999.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time with a time zone and a year from 1970 to 9999: {0:?}")]
pub struct TimestampError(String);

/// Microseconds since 1970-01-01 UTC.
///
/// The text form is that of Python's pydantic, because receipts sign it: `2026-01-21T12:34:56.789012Z`, with six
/// digits, or with none where the fraction is exactly zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 9999-12-31T23:59:59.999999Z, the last moment that has a text form.
    const MAX_MICROS: i64 = 253_402_300_799_999_999;

    /// Takes microseconds since the epoch, clamped to the years 1970 to 9999.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(0, Self::MAX_MICROS))
    }

    /// Takes whole seconds since the epoch, clamped to the years 1970 to 9999.
    pub fn from_secs(secs: i64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// Microseconds since the epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Whole seconds since the epoch, rounded down.
    pub const fn secs(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// The time that lies `span` later, clamped to the year 9999.
    pub fn plus(self, span: Duration) -> Self {
        Self::from_micros(
            self.0
                .saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// The time that lies `span` earlier, clamped to the year 1970.
    pub fn minus(self, span: Duration) -> Self {
        Self::from_micros(
            self.0
                .saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// The span from `earlier` to this time; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The calendar year in UTC.
    pub fn year(self) -> i32 {
        self.to_chrono().year()
    }

    /// Converts to a chrono value.
    pub fn to_chrono(self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.0).unwrap_or(DateTime::UNIX_EPOCH)
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(time: DateTime<Utc>) -> Self {
        Self::from_micros(time.timestamp_micros())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.to_chrono();
        let (year, month, day) = (time.year(), time.month(), time.day());
        let (hour, minute, second) = (time.hour(), time.minute(), time.second());
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )?;
        match time.nanosecond() / 1_000 {
            0 => f.write_str("Z"),
            micros => write!(f, ".{micros:06}Z"),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let refused = || TimestampError(text.chars().take(48).collect());
        let micros = DateTime::parse_from_rfc3339(text)
            .map_err(|_| refused())?
            .timestamp_micros();
        let time = Self::from_micros(micros);
        if time.0 == micros {
            Ok(time)
        } else {
            Err(refused())
        }
    }
}

serde_as_text!(Timestamp);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_pydantic_does() {
        for (from, to) in [
            ("2026-01-21T12:34:56.789012Z", "2026-01-21T12:34:56.789012Z"),
            ("2026-01-21T12:34:56+00:00", "2026-01-21T12:34:56Z"),
            ("2026-01-21T14:34:56.5+02:00", "2026-01-21T12:34:56.500000Z"),
        ] {
            assert_eq!(from.parse::<Timestamp>().unwrap().to_string(), to);
        }
    }

    #[test]
    fn times_without_a_zone_or_out_of_range_are_refused() {
        for bad in [
            "",
            "2026-01-21T12:34:56",
            "1969-12-31T23:59:59Z",
            "now",
            "2026-13-01T00:00:00Z",
        ] {
            assert!(bad.parse::<Timestamp>().is_err(), "{bad}");
        }
    }

    #[test]
    fn arithmetic_saturates() {
        let late = Timestamp::from_micros(i64::MAX);
        assert_eq!(late.plus(Duration::from_secs(u64::MAX)), late);
        assert_eq!(Timestamp::from_secs(0).since(late), Duration::ZERO);
    }
}
