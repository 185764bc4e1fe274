//! The bound on the answers of one client and day that are tested: one client is not all of them.

use std::collections::BTreeMap;

use muster_protocol::Digest;
use muster_response_proof::DAY_BUCKETS;

/// The most answers of one client and day that are tested: a cheat that is spread over many clients is found all the
/// same, and one client cannot fill the test.
const CLIENT_DAY_ANSWERS: u32 = 4;

/// Counts the answers of each client and day, of which the first four are tested.
#[derive(Clone, Debug, Default)]
pub struct ClientDays(BTreeMap<(Digest, u64), u32>);

impl ClientDays {
    /// Counts a further answer of this client in this bucket, and returns whether it is one of the first four of its
    /// day.
    pub fn admit(&mut self, client: Digest, bucket: u64) -> bool {
        let count = self.0.entry((client, bucket / DAY_BUCKETS)).or_default();
        *count += 1;
        *count <= CLIENT_DAY_ANSWERS
    }
}
