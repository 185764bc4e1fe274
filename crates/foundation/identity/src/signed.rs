//! Types that prove a signature was made or checked.

use std::fmt;
use std::ops::Deref;

use muster_protocol::{Hotkey, ReceiptPayload, Signature};

use crate::Party;
use crate::key::Keypair;
use crate::verify::{VerifyError, verify};

/// A value with exact bytes to sign.
pub trait Statement {
    /// The bytes to sign: the same for the same content on every machine.
    fn signed_bytes(&self) -> Vec<u8>;
}

impl Statement for ReceiptPayload {
    fn signed_bytes(&self) -> Vec<u8> {
        Self::signed_bytes(self)
    }
}

/// A statement with one signature that is known to be its signer's. Values come only from signing and from checking.
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

    /// Accepts a payload that `signer`, in the role of `party`, has signed.
    ///
    /// # Errors
    /// `signature` is not the signer's over this payload.
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
    /// The statement that was signed.
    pub fn payload(&self) -> &T {
        &self.payload
    }

    /// The key that signed.
    pub fn signer(&self) -> Hotkey {
        self.signer
    }

    /// The signer's signature over the statement's bytes.
    pub fn signature(&self) -> Signature {
        self.signature
    }
}

/// A value whose signatures and limits have been checked. Only this crate makes one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// Wraps a value that a function of this crate has just checked.
    pub(crate) fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, which from here on counts as unchecked.
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
