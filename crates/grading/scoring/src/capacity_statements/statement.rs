//! A validator's signed statement of capacity for one cycle.

use muster_identity::{Domain, Keypair, SigningMessage, verify};
use muster_protocol::{Digest, Signature, ValidatorKey, canonical};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capacity_statements::evidence::{CapacityEvidence, evidence_digest};
use crate::{CapacityRow, CapacityStatement};

/// The format and version of a statement.
const FORMAT: Domain = Domain::new("muster/capacity/1");

/// The largest text of a statement that is read, in bytes: 256 miners with five classes and two kinds of probe.
pub const MAX_STATEMENT_BYTES: usize = 1024 * 1024;

/// The subnet, the cycle and the validator of a statement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementContext {
    /// The chain's genesis hash.
    pub genesis: String,
    /// The number of the subnet.
    pub netuid: u16,
    /// The validator that states it.
    pub validator: ValidatorKey,
    /// The first block of the cycle for which it is stated.
    pub cycle: u64,
}

/// A statement with its signature, as it is served and stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedStatement {
    /// The format and version.
    format: String,
    #[serde(flatten)]
    context: StatementContext,
    rows: Vec<CapacityRow>,
    /// The digest of the evidence.
    evidence: Digest,
    /// The validator's signature over the canonical text of all other fields.
    signature: Signature,
}

/// The reason why a statement or its evidence does not count.
#[derive(Debug, thiserror::Error)]
pub enum StatementError {
    /// The text is no statement.
    #[error("the document is not a statement of capacity")]
    Text(#[from] serde_json::Error),
    /// The text or its format is another one.
    #[error("the document is longer than a statement may be, or of another format")]
    Format,
    /// The statement is about another subnet or cycle, or of another validator.
    #[error("the statement is about another subnet or cycle, or of another validator")]
    Context,
    /// The validator did not sign it.
    #[error("the statement's validator did not sign it")]
    Signature,
    /// The evidence is not the one that the statement names.
    #[error("the evidence is not the one that it names")]
    OtherEvidence,
    /// Other rows follow from the evidence.
    #[error("the statement's rows do not follow from its evidence")]
    Rows,
}

/// The text that is signed: all fields but the signature. Unlike the way through serde, this one cannot fail.
fn signed_text(context: &StatementContext, rows: &[CapacityRow], evidence: Digest) -> SigningMessage {
    let StatementContext {
        genesis,
        netuid,
        validator,
        cycle,
    } = context;
    let rows: Vec<Value> = rows.iter().map(row_object).collect();
    let fields = [
        ("genesis", canonical::text(genesis)),
        ("netuid", (*netuid).into()),
        ("validator", canonical::text(validator)),
        ("cycle", (*cycle).into()),
        ("rows", rows.into()),
        ("evidence", canonical::text(&evidence)),
    ];
    SigningMessage::document(FORMAT, fields)
}

fn row_object(row: &CapacityRow) -> Value {
    let CapacityRow {
        miner,
        class,
        kind,
        executors,
        credit,
        offers,
        refused,
    } = row;
    canonical::object([
        ("miner", canonical::text(miner)),
        ("class", canonical::text(class)),
        ("kind", kind.as_str().into()),
        ("executors", (*executors).into()),
        ("credit", (*credit).into()),
        ("offers", (*offers).into()),
        ("refused", (*refused).into()),
    ])
}

/// Signs what the evidence proves.
pub fn sign_statement(
    keypair: &Keypair,
    context: StatementContext,
    evidence: &CapacityEvidence,
) -> SignedStatement {
    let (rows, digest) = (evidence.rows(), evidence_digest(&evidence.to_text()));
    let signature = keypair.sign(&signed_text(&context, &rows, digest));
    SignedStatement {
        format: FORMAT.as_str().to_owned(),
        context,
        rows,
        evidence: digest,
        signature,
    }
}

/// Reads a statement that has to be of this validator, subnet and cycle.
///
/// # Errors
/// The text is no such statement, or its validator did not sign it.
pub fn check_statement(text: &str, expected: &StatementContext) -> Result<SignedStatement, StatementError> {
    if text.len() > MAX_STATEMENT_BYTES {
        return Err(StatementError::Format);
    }
    let statement: SignedStatement = serde_json::from_str(text)?;
    if statement.format != FORMAT.as_str() {
        return Err(StatementError::Format);
    }
    if statement.context != *expected {
        return Err(StatementError::Context);
    }
    let signed = statement.signed_text();
    if verify(&expected.validator.0, signed.as_bytes(), &statement.signature) {
        Ok(statement)
    } else {
        Err(StatementError::Signature)
    }
}

impl SignedStatement {
    fn signed_text(&self) -> SigningMessage {
        signed_text(&self.context, &self.rows, self.evidence)
    }

    /// The digest of the signed text. Two signatures over one text have the same, though a signature is never made
    /// twice.
    pub fn digest(&self) -> Digest {
        Digest::of(self.signed_text().as_bytes())
    }

    /// The validator's signature over the text.
    pub fn signature(&self) -> Signature {
        self.signature
    }

    /// The digest of the evidence that the rows follow from.
    pub fn evidence(&self) -> Digest {
        self.evidence
    }

    /// Reads the evidence, from which the rows have to follow.
    ///
    /// # Errors
    /// The text is not the evidence that the statement names, or other rows follow from it.
    pub fn check_evidence(&self, text: &str) -> Result<CapacityEvidence, StatementError> {
        if evidence_digest(text) != self.evidence {
            return Err(StatementError::OtherEvidence);
        }
        let evidence: CapacityEvidence = serde_json::from_str(text)?;
        if evidence.rows() == self.rows {
            Ok(evidence)
        } else {
            Err(StatementError::Rows)
        }
    }

    /// The statement as scoring reads it.
    pub fn stated(&self) -> CapacityStatement {
        CapacityStatement {
            validator: self.context.validator,
            cycle: self.context.cycle,
            rows: self.rows.clone(),
        }
    }

    /// The canonical text, with the signature.
    pub fn to_text(&self) -> String {
        // A struct of texts, integers and lists always has a JSON form.
        canonical::sorted_compact_of(self).unwrap_or_default()
    }
}
