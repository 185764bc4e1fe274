//! Keys, signatures and wallet files: sr25519 signatures made and checked, without a network.
//!
//! A checked value has a type of its own: logic takes [`Verified`], and only this crate makes one.

mod job_signatures;
mod key;
mod peer_greetings;
mod receipt_signatures;
mod sealed_credentials;
mod signed;
mod verify;
mod vrf;
pub mod wallet;

pub use job_signatures::{
    FrameSignature, sign_job, sign_request, sign_streaming_ready, sign_terms, verify_cheat_report,
    verify_frame, verify_job, verify_job_fields, verify_request, verify_streaming_ready,
};
pub use key::{Keypair, SecretError};
pub use peer_greetings::{
    AuthError, answer_challenge, sign_facilitator_auth, sign_validator_auth, verify_challenge,
    verify_facilitator_auth, verify_login, verify_validator_auth,
};
pub use receipt_signatures::{
    countersign, offer_receipt, verify_countersigned, verify_offered, verify_receipt, verify_receipts,
};
pub use sealed_credentials::{CredentialsSealError, open_credentials, seal_credentials};
pub use signed::Verified;
pub use verify::{Party, SignatureClaim, VerifyError, verify, verify_batch};
pub use vrf::{ProvenOutput, VrfInput, VrfTextError};
