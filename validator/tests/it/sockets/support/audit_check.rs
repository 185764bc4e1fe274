//! A real audit check of spot checks in the place of a scripted miner's.

use std::path::Path;
use std::sync::Mutex;

use muster_audit_check::{AuditCheck, AuditCheckConversation, AuditCheckStore};
use muster_process::SystemClock;
use muster_protocol::wire::audits::{AuditMessage, AuditReply, SessionProofs, SignedProof};
use muster_protocol::{MinerKey, ValidatorKey};
use muster_response_proof::{Envelope, ResponseProof, StreamEnd};
use muster_sealing_proxy::ProofSigner;
use muster_store::testing::migrations_in;
use tempfile::TempDir;

/// Changes what the validator sends before the audit check receives it, as a validator that lies would.
pub(crate) type Tampering = Box<dyn FnMut(&mut AuditMessage) + Send>;

/// A audit check with a store of its own.
pub(crate) struct TestAuditCheck {
    pub(crate) audit_check: AuditCheck,
    tampering: Mutex<Option<Tampering>>,
    _folder: TempDir,
}

impl TestAuditCheck {
    pub(crate) async fn open(me: MinerKey) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("miner.db").display());
        let pool = muster_store::open(&url).await.unwrap();
        let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../miner/migrations");
        muster_store::migrate(&pool, &migrations_in(migrations))
            .await
            .unwrap();
        Self {
            audit_check: AuditCheck::new(
                AuditCheckStore::new(pool),
                me,
                std::sync::Arc::new(SystemClock::new()),
            ),
            tampering: Mutex::default(),
            _folder: folder,
        }
    }

    /// Changes messages from now on.
    pub(crate) fn tamper(&self, tampering: impl FnMut(&mut AuditMessage) + Send + 'static) {
        *self.tampering.lock().unwrap() = Some(Box::new(tampering));
    }

    pub(crate) fn converse(&self, validator: ValidatorKey) -> AuditCheckConversation {
        self.audit_check.converse(validator)
    }

    /// The names of what the audit check has found, each with its subject.
    pub(crate) async fn found(&self) -> Vec<(String, String)> {
        let findings = self.audit_check.store().findings().await.unwrap();
        findings.into_iter().map(|one| (one.kind, one.about)).collect()
    }

    /// Receives a message, after the executors have reported what they signed.
    pub(crate) async fn take_message(
        &self,
        audits: &mut AuditCheckConversation,
        mut message: AuditMessage,
        signed: Vec<SessionProofs>,
    ) -> Vec<AuditReply> {
        for told in signed {
            self.audit_check.note_proofs(&told).await.unwrap();
        }
        if let Some(tampering) = &mut *self.tampering.lock().unwrap() {
            tampering(&mut message);
        }
        audits.take_message(message).await.unwrap()
    }
}

/// The proofs of a session, as its executor reports them.
pub(crate) fn session_proofs(signer: &ProofSigner) -> SessionProofs {
    let session = signer.session();
    let signed = |text: &str| {
        let envelope = Envelope::<ResponseProof>::from_text(text).unwrap();
        let proof = envelope.statement().unwrap();
        SignedProof {
            digest: envelope.digest(),
            is_answer: proof.client.is_some() && proof.end == StreamEnd::Completed,
            at: proof.to,
        }
    };
    let page = signer.proofs(0, 512);
    SessionProofs {
        job_uuid: session.attempt,
        session: session.session.to_string(),
        validator: session.audience,
        first: 0,
        proofs: page.proofs.iter().map(|(_, text)| signed(text)).collect(),
    }
}
