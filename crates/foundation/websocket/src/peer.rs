//! The headers by which two peers show at an upgrade that they are Muster, and their features.

use muster_protocol::{FeatureSet, MUSTER_FEATURES_HEADER, MUSTER_PROTOCOL_HEADER, MUSTER_PROTOCOL_VERSION};
use tokio_tungstenite::tungstenite::http::{HeaderMap, HeaderValue};

/// The peer as the headers of its upgrade show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerKind {
    /// Whether the peer is Muster in our version.
    pub(crate) muster: bool,
    /// The features that a Muster peer showed.
    pub(crate) features: FeatureSet,
}

impl PeerKind {
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let muster = headers
            .get(MUSTER_PROTOCOL_HEADER)
            .is_some_and(|value| value.as_bytes().trim_ascii() == MUSTER_PROTOCOL_VERSION.as_bytes());
        let features = headers
            .get(MUSTER_FEATURES_HEADER)
            .filter(|_| muster)
            .map(|value| FeatureSet::parse(value.as_bytes()))
            .unwrap_or_default();
        Self { muster, features }
    }
}

/// Adds the headers by which we show that we are Muster, and our features.
pub(crate) fn show_ourselves(headers: &mut HeaderMap) {
    headers.insert(
        MUSTER_PROTOCOL_HEADER,
        HeaderValue::from_static(MUSTER_PROTOCOL_VERSION),
    );
    // The names of features are letters and hyphens, so the value is always a valid one.
    if let Ok(features) = HeaderValue::try_from(FeatureSet::ours().to_string()) {
        headers.insert(MUSTER_FEATURES_HEADER, features);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_count_for_muster_peers_only() {
        let mut headers = HeaderMap::new();
        show_ourselves(&mut headers);
        let ours = PeerKind {
            muster: true,
            features: FeatureSet::ours(),
        };
        assert_eq!(PeerKind::read(&headers), ours);
        headers.remove(MUSTER_PROTOCOL_HEADER);
        let stranger = PeerKind {
            muster: false,
            features: FeatureSet::NONE,
        };
        assert_eq!(PeerKind::read(&headers), stranger);
        headers.clear();
        headers.insert(MUSTER_PROTOCOL_HEADER, HeaderValue::from_static("1"));
        let older = PeerKind {
            muster: true,
            features: FeatureSet::NONE,
        };
        assert_eq!(PeerKind::read(&headers), older);
    }
}
