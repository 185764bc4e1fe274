//! The route of a job as it is reported to its user: the miner of each attempt and why it was asked, and how many
//! others were not, with the reasons. No miner but those that were asked is named.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::ids::AttemptId;
use crate::keys::MinerKey;

/// The most steps of one route that are sent and read.
pub const MAX_ROUTE_STEPS: usize = 16;
/// The most reasons of one list that are sent and read.
pub const MAX_ROUTE_REASONS: usize = 32;
/// The most characters of a text that are sent and read.
pub const MAX_ROUTE_TEXT: usize = 500;

/// One decision of a job's validator: the attempt that it led to, if any, and the reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStep {
    /// The attempt's id on the wire; absent if no miner could be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// The miner that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miner: Option<MinerKey>,
    /// The number of miners that could be asked. The one with the fewest drawbacks was.
    #[serde(default)]
    pub candidates: u32,
    /// The drawbacks of the miner that was asked, as texts; empty if it had none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drawbacks: Vec<String>,
    /// The reasons for which miners could not be asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<ExclusionCount>,
    /// How the attempt ended, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// A reason for which miners could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusionCount {
    /// The reason as text.
    pub reason: String,
    /// The number of miners.
    pub miners: u32,
}

// === impl RouteStep ===

impl RouteStep {
    /// Cuts the lists and the texts to what is sent and read.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let cut = |text: &mut String| {
            if let Some((end, _)) = text.char_indices().nth(MAX_ROUTE_TEXT) {
                text.truncate(end);
            }
        };
        self.drawbacks.truncate(MAX_ROUTE_REASONS);
        self.excluded.truncate(MAX_ROUTE_REASONS);
        self.drawbacks.iter_mut().for_each(cut);
        self.excluded
            .iter_mut()
            .for_each(|excluded| cut(&mut excluded.reason));
        self.ended.iter_mut().for_each(cut);
        self
    }
}

/// Reads the route that a validator sends. One that cannot be read is none: it must not stop a result.
pub(crate) fn read_route<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<RouteStep>, D::Error> {
    let Value::Array(steps) = Value::deserialize(d)? else {
        return Ok(Vec::new());
    };
    let read = |step: Value| RouteStep::deserialize(step).ok().map(RouteStep::bounded);
    Ok(steps.into_iter().take(MAX_ROUTE_STEPS).filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::muster::StatusExtension;

    #[test]
    fn a_route_has_one_form_and_another_form_is_none() {
        let text = r#"{"route":[{"attempt":"11111111-2222-4333-8444-555555555555","miner":"5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy","candidates":3,"drawbacks":["the image is not known to be there"],"excluded":[{"reason":"no axon on the chain","miners":2}],"ended":"completed"},{"candidates":0}]}"#;
        let extension: StatusExtension = serde_json::from_str(text).unwrap();
        assert_eq!(extension.route.len(), 2);
        assert_eq!(serde_json::to_string(&extension).unwrap(), text);
        for odd in [
            json!(7),
            json!({"a": 1}),
            json!([7, {"candidates": "x"}]),
            json!(null),
        ] {
            let extension: StatusExtension =
                serde_json::from_value(json!({"attempt": null, "route": odd})).unwrap();
            assert_eq!(extension, StatusExtension::default(), "{odd}");
        }
    }

    #[test]
    fn a_long_route_is_cut() {
        let step = json!({
            "drawbacks": vec!["ż".repeat(2_000); 50], "ended": "x".repeat(2_000),
            "excluded": vec![json!({"reason": "y".repeat(2_000), "miners": 1}); 50],
        });
        let extension: StatusExtension = serde_json::from_value(json!({"route": vec![step; 50]})).unwrap();
        assert_eq!(extension.route.len(), MAX_ROUTE_STEPS);
        let [step, ..] = extension.route.as_slice() else {
            unreachable!()
        };
        assert_eq!((step.drawbacks.len(), step.excluded.len()), (32, 32));
        assert_eq!(step.drawbacks[0].chars().count(), MAX_ROUTE_TEXT);
        assert_eq!(step.excluded[0].reason.len(), MAX_ROUTE_TEXT);
        assert_eq!(step.ended.as_ref().map(String::len), Some(MAX_ROUTE_TEXT));
    }
}
