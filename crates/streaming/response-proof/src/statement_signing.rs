//! Signing a statement by its tag. The module of pages is compiled without this: it checks signatures and has no keys.

use muster_identity::{Domain, Keypair, SigningMessage};

use crate::envelope::{Envelope, Sealable};

/// Signs a statement. The signature covers the statement's tag, so it serves as no other statement.
pub fn seal<T: Sealable>(statement: &T, keypair: &Keypair) -> Envelope<T> {
    let domain = const { Domain::new(T::TAG) };
    Envelope::new(statement, |bytes| {
        keypair.sign(&SigningMessage::statement(domain, bytes))
    })
}
