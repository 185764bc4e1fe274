//! The comment line that tells a waiting client its place: `: muster-wait place=3 for=start about_s=20`.
//!
//! Without a place (`: muster-wait`) the request is being served, and the line only keeps the connection alive. Both
//! begin with Muster's prefix and have no empty line after them, so a checker of the answer removes them completely.

use std::time::Duration;

use bytes::Bytes;
use muster_response_proof::comment::comment_line;
use muster_session_pool::WaitingFor;
pub use muster_session_pool::WaitingPlace;

/// The name of the line.
const NAME: &str = "wait";

/// The line for a request with this place; `None` if it does not wait for one.
pub(crate) fn waiting_comment(place: Option<WaitingPlace>) -> Bytes {
    let Some(place) = place else {
        return comment_line(NAME);
    };
    let WaitingPlace {
        place,
        waits_for,
        expected,
    } = place;
    let mut text = format!("{NAME} place={place} for={}", waits_for.word());
    if let Some(expected) = expected {
        text.push_str(&format!(" about_s={}", expected.as_secs().max(1)));
    }
    comment_line(&text)
}

/// Reads a comment line without Muster's prefix; `None` if it names no place. Members that are not known are passed
/// over.
pub fn read_waiting_comment(text: &str) -> Option<WaitingPlace> {
    let members = text.strip_prefix(NAME)?.strip_prefix(' ')?;
    let member = |name: &str| {
        let mut pairs = members.split(' ').filter_map(|member| member.split_once('='));
        pairs.find_map(|(known, value)| (known == name).then_some(value))
    };
    Some(WaitingPlace {
        place: member("place")?.parse().ok()?,
        waits_for: WaitingFor::of_word(member("for")?)?,
        expected: member("about_s")
            .and_then(|seconds| seconds.parse().ok())
            .map(Duration::from_secs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = WaitingPlace {
            place: 3,
            waits_for: WaitingFor::Start,
            expected: Some(Duration::from_secs(20)),
        };
        let unknown = WaitingPlace {
            waits_for: WaitingFor::Executor,
            expected: None,
            ..place
        };
        for (place, line) in [
            (Some(place), ": muster-wait place=3 for=start about_s=20\n"),
            (Some(unknown), ": muster-wait place=3 for=executor\n"),
            (None, ": muster-wait\n"),
        ] {
            assert_eq!(waiting_comment(place), line);
            let text = line.trim_start_matches(": muster-").trim_end();
            assert_eq!(read_waiting_comment(text), place, "{line}");
        }
        let newer = "wait model=x place=3 for=start about_s=20";
        assert_eq!(
            read_waiting_comment(newer),
            Some(place),
            "a member that is not known"
        );
        for other in [
            "waiting place=3 for=start",
            "wait place=x for=start",
            "wait place=3",
            "proof AAAA",
        ] {
            assert_eq!(read_waiting_comment(other), None, "{other}");
        }
    }
}
