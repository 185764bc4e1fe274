//! W3C's trace context: the header `traceparent`, read as strictly as the recommendation demands, and ids of spans.
//!
//! The ids of Muster's spans follow from what they name, so nothing is drawn or stored for them. No IO.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The header of W3C's trace context, and the key of the same text in Muster's messages.
pub const TRACEPARENT_HEADER: &str = "traceparent";

/// The most bytes of a `traceparent` that are read. Version 00 has 55; later ones may have more.
const MAX_TRACEPARENT: usize = 512;
/// `00-`, 32 digits, `-`, 16 digits, `-`, two digits.
const TRACEPARENT: usize = 55;
/// The flag of a trace whose caller may have recorded it.
const SAMPLED: u8 = 1;

/// The id of a trace: 16 bytes that are not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId([u8; 16]);

/// The id of a span in its trace: 8 bytes that are not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId([u8; 8]);

/// W3C's `traceparent`: the trace, and the span of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace that the caller's and the receiver's spans belong to.
    pub trace: TraceId,
    /// The caller's span, under which the receiver's spans stand.
    pub span: SpanId,
    /// Whether the caller may have recorded the trace. Spans of other traces are not exported.
    pub sampled: bool,
}

/// The text is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a traceparent is 00-, 32 hex digits, -, 16 hex digits, -, 2 hex digits, in lower case and not all zero"
)]
pub struct TraceParentError;

// === impl TraceId, SpanId ===

impl TraceId {
    /// The id with these bytes; zero, which no trace may have, becomes ones.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(if bytes == [0; 16] { [1; 16] } else { bytes })
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl SpanId {
    /// The id of a stage. It follows from what the stage is, so a role that starts again reports the same id: the
    /// first 8 bytes of SHA-256(`muster/span/1` ‖ trace ‖ owner ‖ role ‖ 0 ‖ stage). The owner is the attempt's or the
    /// job's UUID.
    pub fn of(trace: TraceId, owner: [u8; 16], role: &str, stage: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [b"muster/span/1".as_slice(), &trace.0, &owner] {
            hash.update(part);
        }
        for part in [role.as_bytes(), &[0], stage.as_bytes()] {
            hash.update(part);
        }
        let mut id = [0; 8];
        for (to, from) in id.iter_mut().zip(hash.finalize()) {
            *to = from;
        }
        Self(if id == [0; 8] { [1; 8] } else { id })
    }

    /// The 8 bytes.
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanId({self})")
    }
}

// === impl TraceParent ===

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.sampled { SAMPLED } else { 0 };
        write!(f, "00-{}-{}-{flags:02x}", self.trace, self.span)
    }
}

impl FromStr for TraceParent {
    type Err = TraceParentError;

    /// Reads version 00, and the part of a later version that has the same meaning there.
    fn from_str(text: &str) -> Result<Self, TraceParentError> {
        let fields = text.get(..TRACEPARENT).ok_or(TraceParentError)?;
        let further = text.get(TRACEPARENT..).unwrap_or_default();
        let mut parts = fields.split('-');
        let mut next = || parts.next().ok_or(TraceParentError);
        let [version] = read_hex::<1>(next()?)?;
        let (trace, span) = (read_hex::<16>(next()?)?, read_hex::<8>(next()?)?);
        let [flags] = read_hex::<1>(next()?)?;
        let known = version == 0 && further.is_empty();
        let later = (1..0xff).contains(&version)
            && text.len() <= MAX_TRACEPARENT
            && (further.is_empty() || further.starts_with('-'));
        let is_whole = parts.next().is_none() && trace != [0; 16] && span != [0; 8];
        if !(is_whole && (known || later)) {
            return Err(TraceParentError);
        }
        Ok(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            sampled: flags & SAMPLED != 0,
        })
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceParent {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(d)?
            .parse()
            .map_err(de::Error::custom)
    }
}

fn read_hex<const N: usize>(text: &str) -> Result<[u8; N], TraceParentError> {
    let mut bytes = [0; N];
    let is_lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !is_lower {
        return Err(TraceParentError);
    }
    hex::decode_to_slice(text, &mut bytes).map_err(|_| TraceParentError)?;
    Ok(bytes)
}

/// Reads a field of a peer's message, for serde. A context that cannot be read is none, as W3C demands: a trace must
/// not stop a job.
///
/// # Errors
/// The message itself cannot be read.
pub fn read_leniently<'de, D: Deserializer<'de>>(d: D) -> Result<Option<TraceParent>, D::Error> {
    let value = Value::deserialize(d)?;
    Ok(value.as_str().and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The example of the W3C's recommendation.
    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn the_header_is_read_and_written_as_the_recommendation_says() {
        let read: TraceParent = EXAMPLE.parse().unwrap();
        assert_eq!(read.trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(read.span.to_string(), "b7ad6b7169203331");
        assert!(read.sampled);
        assert_eq!(read.to_string(), EXAMPLE);
        let unsampled: TraceParent = EXAMPLE.replace("-01", "-00").parse().unwrap();
        assert!(!unsampled.sampled);
        // Only the lowest flag has a meaning; the others are not passed on.
        let flags: TraceParent = EXAMPLE.replace("-01", "-ff").parse().unwrap();
        assert_eq!(flags.to_string(), EXAMPLE);
        // A later version may have more, behind a hyphen.
        for later in ["01", "fe"] {
            let later = EXAMPLE.replacen("00", later, 1);
            assert_eq!(later.parse(), Ok(read));
            assert_eq!(format!("{later}-what-the-future-holds").parse(), Ok(read));
            assert!(format!("{later}.x").parse::<TraceParent>().is_err());
        }
    }

    #[test]
    fn hostile_headers_are_none() {
        let long = format!("01{}-{}", &EXAMPLE[2..], "x".repeat(1_000));
        for bad in [
            "",
            "00",
            &EXAMPLE[..54],
            &format!("{EXAMPLE}-x"),
            &format!("{EXAMPLE} "),
            &EXAMPLE.to_uppercase(),
            &EXAMPLE.replacen("00", "ff", 1),
            &EXAMPLE.replace('-', "_"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-101",
            "00-0af7651916cd43dd8448eb211c8031ü-b7ad6b7169203331-01",
            "00-<script>alert(1)</script>-b7ad6b7169203331-01-------",
            &long,
        ] {
            assert_eq!(bad.parse::<TraceParent>(), Err(TraceParentError), "{bad}");
        }
    }

    #[test]
    fn ids_follow_from_what_they_name_and_never_change() {
        let trace = TraceId::from_bytes([0x11; 16]);
        let seen = [
            SpanId::of(trace, [7; 16], "validator", "run"),
            SpanId::of(trace, [7; 16], "miner", "run"),
            SpanId::of(trace, [8; 16], "validator", "run"),
        ];
        insta::assert_snapshot!(format!("{seen:?}"), @"[SpanId(11f70c2686cbdf4d), SpanId(7ce023dbb1a242ec), SpanId(5376f731caaeaf04)]");
        assert_ne!(TraceId::from_bytes([0; 16]).as_bytes(), &[0; 16]);
    }

    #[test]
    fn a_field_that_cannot_be_read_is_none() {
        #[derive(Deserialize)]
        struct Message {
            #[serde(default, deserialize_with = "read_leniently")]
            traceparent: Option<TraceParent>,
        }
        let read = |text: &str| serde_json::from_str::<Message>(text).unwrap().traceparent;
        assert_eq!(
            read(&format!("{{\"traceparent\":\"{EXAMPLE}\"}}")),
            EXAMPLE.parse().ok()
        );
        for hostile in [
            "{}",
            r#"{"traceparent":null}"#,
            r#"{"traceparent":7}"#,
            r#"{"traceparent":["00"]}"#,
            r#"{"traceparent":{"a":{"b":1}}}"#,
            r#"{"traceparent":"</script>"}"#,
        ] {
            assert_eq!(read(hostile), None, "{hostile}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_none_or_reads_as_itself(text in "\\PC{0,80}") {
            if let Ok(read) = text.parse::<TraceParent>() {
                prop_assert_eq!(read.to_string().parse(), Ok(read));
            }
        }
    }
}
