//! Keys, signatures and wallet files: sr25519 signatures made and checked, without a network.
//!
//! A checked value has a type of its own: logic takes [`Verified`], and only this crate makes one. A key signs a
//! [`SigningMessage`] only, which has a domain of ours or a form that this crate builds: no text of a peer is signed as
//! it came.

mod job_signatures;
mod key;
mod peer_greetings;
mod receipt_signatures;
mod sealed_credentials;
mod signing_message;
mod verified;
mod verify;
mod vrf;
pub mod wallet;

pub use job_signatures::{
    FrameSignature, sign_frame, sign_job, sign_request, sign_streaming_ready, sign_terms,
    verify_cheat_report, verify_frame, verify_job, verify_job_fields, verify_request, verify_streaming_ready,
};
pub use key::{Keypair, SecretError};
pub use peer_greetings::{
    AuthError, LoginForm, answer_challenge, sign_facilitator_auth, sign_login, sign_validator_auth,
    verify_challenge, verify_facilitator_auth, verify_login, verify_validator_auth,
};
pub use receipt_signatures::{
    countersign, offer_receipt, sign_receipt, verify_countersigned, verify_offered, verify_receipt,
    verify_receipts,
};
pub use sealed_credentials::{CredentialsSealError, open_credentials, seal_credentials};
pub use signing_message::{Domain, SigningMessage};
pub use verified::Verified;
pub use verify::{Party, SignatureClaim, VerifyError, verify, verify_batch};
pub use vrf::{ProvenOutput, VrfInput, VrfTextError};
