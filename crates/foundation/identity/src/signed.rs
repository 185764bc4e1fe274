//! Proof of signing and of checking, as types.

use std::fmt;
use std::ops::Deref;

use muster_protocol::{Hotkey, ReceiptPayload, Signature};

use crate::Party;
use crate::key::Keypair;
use crate::verify::{VerifyError, verify};

/// Something with exact bytes to sign.
pub trait Statement {
    /// The bytes: the same for the same content, on every machine.
    fn signed_bytes(&self) -> Vec<u8>;
}

impl Statement for ReceiptPayload {
    fn signed_bytes(&self) -> Vec<u8> {
        Self::signed_bytes(self)
    }
}

/// A statement with one signature that is known to be its signer's: made by signing or by checking, never by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed<T> {
    payload: T,
    signer: Hotkey,
    signature: Signature,
}

impl<T: Statement> Signed<T> {
    /// Signs `payload`.
    pub fn sign(payload: T, keypair: &Keypair) -> Self {
        let signature = keypair.sign(&payload.signed_bytes());
        Self {
            payload,
            signer: keypair.hotkey(),
            signature,
        }
    }

    /// Takes what `signer`, in the role of `party`, is said to have signed.
    ///
    /// # Errors
    /// The signature is not theirs over this.
    pub fn check(
        payload: T,
        party: Party,
        signer: Hotkey,
        signature: Signature,
    ) -> Result<Self, VerifyError> {
        if verify(&signer, &payload.signed_bytes(), &signature) {
            Ok(Self {
                payload,
                signer,
                signature,
            })
        } else {
            Err(VerifyError::Signature { party, key: signer })
        }
    }
}

impl<T> Signed<T> {
    /// What was signed.
    pub fn payload(&self) -> &T {
        &self.payload
    }

    /// Who signed.
    pub fn signer(&self) -> Hotkey {
        self.signer
    }

    /// The signature.
    pub fn signature(&self) -> Signature {
        self.signature
    }
}

/// A value whose signatures and limits have been checked. Only this crate makes one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// For the functions of this crate that have just checked `value`.
    pub(crate) fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, which from here on is as good as unchecked.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Verified<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verified").field(&self.0).finish()
    }
}
