//! Leaves sessions out of a bundle that would make it prove nothing: one session with false statements of its miner
//! must not save the coldkey from the evidence of all others.

use muster_audit::{ReplayError, check_evidence};
use muster_process::error::Causes;

use crate::evidence::assemble::assemble;
use crate::evidence::inputs::{EvidenceInputs, WholeSession};

/// Takes the sessions out of which no bundle can be made that replays. Returns the number of them. It takes seconds for
/// a thousand answers, since every signature is checked.
pub(crate) fn leave_out_unprovable(inputs: &mut EvidenceInputs) -> usize {
    let sessions = std::mem::take(&mut inputs.sessions);
    // They are no part of any session, and a copy of them would stand in each bundle.
    let nonce_keys = std::mem::take(&mut inputs.nonce_keys);
    let before = sessions.len();
    let mut provable = Vec::with_capacity(before);
    for session in sessions {
        inputs.sessions.push(session);
        let fault = fault_of(inputs);
        let session = inputs.sessions.pop();
        match fault {
            None => provable.extend(session),
            Some(fault) => tell(session.as_ref(), &fault),
        }
    }
    inputs.sessions = provable;
    inputs.nonce_keys = nonce_keys;
    before - inputs.sessions.len()
}

/// The reason why a bundle of these inputs proves nothing, as text.
fn fault_of(inputs: &EvidenceInputs) -> Option<String> {
    match assemble(inputs, usize::MAX) {
        None => Some("the stored log does not fit together".to_owned()),
        Some(bundle) => check_evidence(&bundle)
            .err()
            .map(|error: ReplayError| Causes(&error).to_string()),
    }
}

fn tell(session: Option<&WholeSession>, fault: &str) {
    let answer = session.and_then(|session| session.answers.first());
    let (answer, miner) = (
        answer.map(|answer| answer.session.to_string()),
        session.map(|session| session.miner.to_string()),
    );
    tracing::warn!(
        session = answer,
        miner,
        fault,
        "a session is left out of the evidence, because a bundle with it would not replay"
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_audit::{BucketDraw, Calibration, NoncePeriod, ReferenceMachine, RevealedNonceKey};
    use muster_gateway::store::{LoggedAnswer, StoredBucket};
    use muster_identity::Keypair;
    use muster_protocol::{Digest, ImageId, MinerKey, Timestamp, ValidatorKey};
    use muster_response_proof::{
        Attestation, BucketHeader, BucketNumber, LeafTree, Price, ResponseProof, Sealable as _, SessionId,
        Text, root_of, seal,
    };
    use uuid::Uuid;

    use super::*;
    use crate::evidence::inputs::{AuditorFacts, DrawnBucket};
    use crate::log::leaves::leaf_hashes;
    use crate::log::shares::{StoredShare, share_root};
    use crate::testing::{answer, key, proof};

    const GENESIS: Digest = Digest::from_bytes([1; 32]);

    fn validator() -> Keypair {
        Keypair::from_seed([4; 32])
    }

    fn miner() -> Keypair {
        Keypair::from_seed([5; 32])
    }

    fn calibration() -> Calibration {
        Calibration::parse(include_str!("../../../../tests/vectors/audit-calibration.json")).unwrap()
    }

    /// The one answer of a session; `stated` is the client that its proof names, beside the one of its leaf.
    fn session(number: u8, stated: Option<Digest>) -> LoggedAnswer {
        let session_key = Keypair::from_seed([number; 32]);
        let made = proof(0);
        let attestation = Attestation {
            session: SessionId(Uuid::from_u128(number.into())),
            session_key: session_key.hotkey(),
            job: made.job,
            attempt: made.attempt,
            miner: MinerKey(miner().hotkey()),
            audience: ValidatorKey(validator().hotkey()),
            server_certificate: GENESIS,
            client_certificate: GENESIS,
            executor: Text::new("executor").unwrap(),
            address: Text::new("203.0.113.7:6006").unwrap(),
            image: ImageId(calibration().engine),
            model: None,
            scheme: made.scheme,
            price: Price { input: 0, output: 1 },
            not_before: Timestamp::from_secs(0),
            not_after: Timestamp::from_secs(9),
        };
        let attested = Digest::of(&attestation.signed_bytes());
        let signed = ResponseProof {
            session: attestation.session,
            audience: attestation.audience,
            attestation: attested,
            previous: attested,
            client: stated,
            ..made
        };
        LoggedAnswer {
            session: attestation.session,
            miner: attestation.miner,
            attestation: seal(&attestation, &miner()).to_text(),
            proof: seal(&signed, &session_key).to_text(),
            position: u64::from(number) - 1,
            ..answer(number, 0)
        }
    }

    fn inputs(answers: &[LoggedAnswer]) -> EvidenceInputs {
        let auditor = AuditorFacts {
            genesis: GENESIS,
            netuid: 3,
            validator: ValidatorKey(validator().hotkey()),
        };
        let shares = vec![StoredShare {
            miner: MinerKey(miner().hotkey()),
            model: "tiny".to_owned(),
            ppm: 1_000_000,
        }];
        let leaves = leaf_hashes(answers).unwrap();
        let header = BucketHeader {
            genesis: GENESIS,
            netuid: 3,
            validator: auditor.validator,
            bucket: BucketNumber(4),
            answers: u64::try_from(leaves.len()).unwrap(),
            root: root_of(leaves.clone()),
            previous: GENESIS,
            shares: 1,
            share_root: share_root(&shares).unwrap(),
            canaries: GENESIS,
        };
        let (_, draw) = BucketDraw::prove(&validator(), &header, &GENESIS);
        let stored = StoredBucket {
            bucket: header.bucket,
            answers: header.answers,
            header: seal(&header, &validator()).to_text(),
            shares: String::new(),
            canary_list: GENESIS,
            closed_at: Timestamp::from_secs(1),
            draw: None,
        };
        let bucket = DrawnBucket {
            stored,
            shares,
            block_hash: GENESIS,
            draw,
            tree: LeafTree::new(leaves),
        };
        let machine = |name: &str| ReferenceMachine {
            machine: name.to_owned(),
            gpu: "none".to_owned(),
            engine: calibration().engine,
        };
        let whole = |answer: &LoggedAnswer| WholeSession {
            miner: answer.miner,
            attestation: answer.attestation.clone(),
            answers: vec![answer.clone()],
            others: Vec::new(),
            unproven: Vec::new(),
            newest_unproven: None,
            behind_gap: Vec::new(),
        };
        EvidenceInputs {
            auditor,
            coldkey: key(9),
            model: "tiny".to_owned(),
            calibration: calibration(),
            unseeded: None,
            references: vec![machine("first"), machine("second")],
            sessions: answers.iter().map(whole).collect(),
            buckets: BTreeMap::from([(4, bucket)]),
            canaries: BTreeMap::new(),
            commitments: Vec::new(),
            nonce_keys: Vec::new(),
            outcomes: BTreeMap::new(),
            words: BTreeMap::new(),
        }
    }

    #[test]
    fn a_session_that_does_not_replay_is_left_out_and_the_others_are_evidence() {
        let client = Digest::of(b"client");
        let honest = [session(1, Some(client)), session(2, Some(client))];
        let mut whole = inputs(&honest);
        let (_, shown) = RevealedNonceKey::prove(&validator(), &GENESIS, 3, NoncePeriod(0), GENESIS);
        whole.nonce_keys = vec![shown];
        assert_eq!(leave_out_unprovable(&mut whole), 0);
        assert_eq!((whole.sessions.len(), whole.nonce_keys.len()), (2, 1));
        // A modified proxy signed no client, or another one than the gateway's.
        for stated in [None, Some(Digest::of(b"another"))] {
            let mixed = [session(1, Some(client)), session(2, stated)];
            let mut inputs = inputs(&mixed);
            assert!(check_evidence(&assemble(&inputs, usize::MAX).unwrap()).is_err());
            assert_eq!(leave_out_unprovable(&mut inputs), 1);
            assert_eq!(inputs.sessions.len(), 1);
            assert!(check_evidence(&assemble(&inputs, usize::MAX).unwrap()).is_ok());
        }
    }
}
