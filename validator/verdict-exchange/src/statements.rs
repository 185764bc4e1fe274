//! The signed statements by which verdicts travel. Each has one exact layout of bytes, and begins with its tag.

use muster_audit::{UnprovenReason, Verdict};
use muster_identity::{Keypair, verify};
use muster_protocol::{Digest, Hotkey, Timestamp, ValidatorKey};
use muster_response_proof::{BucketHeader, Envelope, LayoutError, Sealable, Text, seal};

/// The longest name of a planted cheat, in bytes.
pub const MAX_KIND: usize = 64;

/// A validator's statement that a bundle convicts by the scores of its own reference alone, and that it adopted the
/// verdict. Statements of version 1 said that scores agreed, which a forger can bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditEndorsement {
    /// The chain's genesis hash.
    pub genesis: Digest,
    /// The number of the subnet.
    pub netuid: u16,
    /// The digest of the bundle's text.
    pub bundle: Digest,
    /// The validator that signs.
    pub validator: ValidatorKey,
    /// The verdict that follows from the bundle by the signer's rules.
    pub verdict: Verdict,
    /// The block at which it adopted the verdict.
    pub block: u64,
}

/// A validator's statement about the header of another validator's bucket: the one that it read first, and by which
/// block. It is made when somebody asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderNote {
    /// The chain's genesis hash.
    pub genesis: Digest,
    /// The number of the subnet.
    pub netuid: u16,
    /// The validator that signs.
    pub validator: ValidatorKey,
    /// The validator whose header it read.
    pub author: ValidatorKey,
    /// The number of the bucket.
    pub bucket: u64,
    /// The digest of the header's bytes.
    pub header: Digest,
    /// The newest block when it had read the header.
    pub block: u64,
}

/// A validator's statement about a test of its own pipeline: a cheat of its own miner that the pipeline had to convict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfTestStatement {
    /// The chain's genesis hash.
    pub genesis: Digest,
    /// The number of the subnet.
    pub netuid: u16,
    /// The validator that signs.
    pub validator: ValidatorKey,
    /// The cheat that was planted, such as `int4 in 10 %`: at most [`MAX_KIND`] bytes.
    pub kind: Text,
    /// When the test ended.
    pub tested_at: Timestamp,
    /// The verdict of the pipeline.
    pub verdict: Verdict,
    /// The digest of the bundle from which the verdict follows.
    pub bundle: Digest,
}

/// A statement that one validator has to have signed.
pub trait ValidatorStatement: Sealable {
    /// The validator that the statement names.
    fn validator(&self) -> ValidatorKey;
    /// The chain and the subnet that the statement names.
    fn subnet(&self) -> (Digest, u16);
}

impl ValidatorStatement for AuditEndorsement {
    fn validator(&self) -> ValidatorKey {
        self.validator
    }

    fn subnet(&self) -> (Digest, u16) {
        (self.genesis, self.netuid)
    }
}

impl ValidatorStatement for SelfTestStatement {
    fn validator(&self) -> ValidatorKey {
        self.validator
    }

    fn subnet(&self) -> (Digest, u16) {
        (self.genesis, self.netuid)
    }
}

impl ValidatorStatement for HeaderNote {
    fn validator(&self) -> ValidatorKey {
        self.validator
    }

    fn subnet(&self) -> (Digest, u16) {
        (self.genesis, self.netuid)
    }
}

/// The header of a bucket is its validator's statement, too.
impl ValidatorStatement for BucketHeader {
    fn validator(&self) -> ValidatorKey {
        self.validator
    }

    fn subnet(&self) -> (Digest, u16) {
        (self.genesis, self.netuid)
    }
}

/// Signs a statement; the text form is base64 of its bytes and of the signature.
pub fn sign_text<T: Sealable>(keypair: &Keypair, statement: &T) -> String {
    seal(statement, keypair).to_text()
}

/// Reads a statement of this validator about this subnet; `None` if it is another one, or the validator did not sign
/// it.
pub fn open_text<T: ValidatorStatement>(
    text: &str,
    validator: ValidatorKey,
    subnet: (Digest, u16),
) -> Option<T> {
    let envelope = Envelope::<T>::from_text(text).ok()?;
    let statement = envelope.statement().ok()?;
    let is_its = statement.validator() == validator
        && statement.subnet() == subnet
        && verify(&validator.0, envelope.signed_bytes(), envelope.signature());
    is_its.then_some(statement)
}

impl Sealable for AuditEndorsement {
    const TAG: &'static str = "muster/audit-endorsement/2";

    fn signed_bytes(&self) -> Vec<u8> {
        [
            Self::TAG.as_bytes(),
            self.genesis.as_bytes(),
            &self.netuid.to_be_bytes(),
            self.bundle.as_bytes(),
            self.validator.0.as_bytes(),
            &[code_of(self.verdict)],
            &self.block.to_be_bytes(),
        ]
        .concat()
    }

    fn read(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of(Self::TAG, bytes)?;
        let read = Self {
            genesis: Digest::from_bytes(fields.take("the genesis hash")?),
            netuid: u16::from_be_bytes(fields.take("the subnet")?),
            bundle: Digest::from_bytes(fields.take("the bundle")?),
            validator: ValidatorKey(Hotkey::from_bytes(fields.take("the validator")?)),
            verdict: verdict_of(fields.take("the verdict")?)?,
            block: u64::from_be_bytes(fields.take("the block")?),
        };
        fields.end()?;
        Ok(read)
    }
}

impl Sealable for HeaderNote {
    const TAG: &'static str = "muster/audit-header-note/1";

    fn signed_bytes(&self) -> Vec<u8> {
        [
            Self::TAG.as_bytes(),
            self.genesis.as_bytes(),
            &self.netuid.to_be_bytes(),
            self.validator.0.as_bytes(),
            self.author.0.as_bytes(),
            &self.bucket.to_be_bytes(),
            self.header.as_bytes(),
            &self.block.to_be_bytes(),
        ]
        .concat()
    }

    fn read(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of(Self::TAG, bytes)?;
        let read = Self {
            genesis: Digest::from_bytes(fields.take("the genesis hash")?),
            netuid: u16::from_be_bytes(fields.take("the subnet")?),
            validator: ValidatorKey(Hotkey::from_bytes(fields.take("the validator")?)),
            author: ValidatorKey(Hotkey::from_bytes(fields.take("the author")?)),
            bucket: u64::from_be_bytes(fields.take("the bucket")?),
            header: Digest::from_bytes(fields.take("the header")?),
            block: u64::from_be_bytes(fields.take("the block")?),
        };
        fields.end()?;
        Ok(read)
    }
}

impl Sealable for SelfTestStatement {
    const TAG: &'static str = "muster/audit-self-test/1";

    fn signed_bytes(&self) -> Vec<u8> {
        let kind = self.kind.as_str().as_bytes();
        [
            Self::TAG.as_bytes(),
            self.genesis.as_bytes(),
            &self.netuid.to_be_bytes(),
            self.validator.0.as_bytes(),
            // A `Text` is far shorter than 64 KiB.
            &u16::try_from(kind.len()).unwrap_or(u16::MAX).to_be_bytes(),
            kind,
            &self.tested_at.micros().to_be_bytes(),
            &[code_of(self.verdict)],
            self.bundle.as_bytes(),
        ]
        .concat()
    }

    fn read(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of(Self::TAG, bytes)?;
        let read = Self {
            genesis: Digest::from_bytes(fields.take("the genesis hash")?),
            netuid: u16::from_be_bytes(fields.take("the subnet")?),
            validator: ValidatorKey(Hotkey::from_bytes(fields.take("the validator")?)),
            kind: fields.kind()?,
            tested_at: fields.time()?,
            verdict: verdict_of(fields.take("the verdict")?)?,
            bundle: Digest::from_bytes(fields.take("the bundle")?),
        };
        fields.end()?;
        Ok(read)
    }
}

/// The byte of a verdict.
const fn code_of(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Unproven(UnprovenReason::NoCalibration) => 0,
        Verdict::Unproven(UnprovenReason::NoScoredAnswers) => 1,
        Verdict::Consistent => 2,
        Verdict::Weak => 3,
        Verdict::Suspect => 4,
        Verdict::Convicted => 5,
    }
}

fn verdict_of([code]: [u8; 1]) -> Result<Verdict, LayoutError> {
    match code {
        0 => Ok(Verdict::Unproven(UnprovenReason::NoCalibration)),
        1 => Ok(Verdict::Unproven(UnprovenReason::NoScoredAnswers)),
        2 => Ok(Verdict::Consistent),
        3 => Ok(Verdict::Weak),
        4 => Ok(Verdict::Suspect),
        5 => Ok(Verdict::Convicted),
        6.. => Err(LayoutError::Value("the verdict")),
    }
}

/// The fields of a statement that are still to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn of(tag: &'static str, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let rest = bytes.strip_prefix(tag.as_bytes());
        rest.map(Self).ok_or(LayoutError::Tag(tag))
    }

    fn take<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], LayoutError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(LayoutError::Short(field))?;
        self.0 = rest;
        Ok(*head)
    }

    fn kind(&mut self) -> Result<Text, LayoutError> {
        const FIELD: &str = "the kind";
        let length = usize::from(u16::from_be_bytes(self.take(FIELD)?));
        let (head, rest) = self.0.split_at_checked(length).ok_or(LayoutError::Short(FIELD))?;
        self.0 = rest;
        let text = std::str::from_utf8(head)
            .ok()
            .filter(|text| text.len() <= MAX_KIND);
        let text = text.ok_or(LayoutError::Value(FIELD))?;
        Text::new(text).map_err(|_| LayoutError::Value(FIELD))
    }

    /// A time in the years that have a text form.
    fn time(&mut self) -> Result<Timestamp, LayoutError> {
        const FIELD: &str = "the time";
        let micros = i64::from_be_bytes(self.take(FIELD)?);
        let time = Timestamp::from_micros(micros);
        let is_whole = time.micros() == micros;
        is_whole.then_some(time).ok_or(LayoutError::Value(FIELD))
    }

    fn end(self) -> Result<(), LayoutError> {
        match self.0.len() {
            0 => Ok(()),
            rest => Err(LayoutError::Trailing(rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subnet() -> (Digest, u16) {
        (Digest::from_bytes([1; 32]), 0x0203)
    }

    fn endorsement(validator: ValidatorKey) -> AuditEndorsement {
        AuditEndorsement {
            genesis: subnet().0,
            netuid: subnet().1,
            bundle: Digest::from_bytes([4; 32]),
            validator,
            verdict: Verdict::Convicted,
            block: 0x0607,
        }
    }

    fn self_test(validator: ValidatorKey) -> SelfTestStatement {
        SelfTestStatement {
            genesis: subnet().0,
            netuid: subnet().1,
            validator,
            kind: Text::new("int4 in 10 %").unwrap(),
            tested_at: Timestamp::from_micros(0x0809),
            verdict: Verdict::Suspect,
            bundle: Digest::from_bytes([4; 32]),
        }
    }

    fn named(byte: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([byte; 32]))
    }

    #[test]
    fn the_bytes_of_an_endorsement_are_golden() {
        let expected = [
            hex::encode("muster/audit-endorsement/2"),
            "01".repeat(32),
            "0203".to_owned(),
            "04".repeat(32),
            "05".repeat(32),
            "05".to_owned(),
            "0000000000000607".to_owned(),
        ]
        .concat();
        assert_eq!(hex::encode(endorsement(named(5)).signed_bytes()), expected);
    }

    #[test]
    fn the_bytes_of_a_self_test_are_golden() {
        let expected = [
            hex::encode("muster/audit-self-test/1"),
            "01".repeat(32),
            "0203".to_owned(),
            "05".repeat(32),
            "000c".to_owned(),
            hex::encode("int4 in 10 %"),
            "0000000000000809".to_owned(),
            "04".to_owned(),
            "04".repeat(32),
        ]
        .concat();
        assert_eq!(hex::encode(self_test(named(5)).signed_bytes()), expected);
    }

    #[test]
    fn the_bytes_of_a_header_note_are_golden() {
        let note = HeaderNote {
            genesis: subnet().0,
            netuid: subnet().1,
            validator: named(5),
            author: named(6),
            bucket: 0x0708,
            header: Digest::from_bytes([4; 32]),
            block: 0x090a,
        };
        let expected = [
            hex::encode("muster/audit-header-note/1"),
            "01".repeat(32),
            "0203".to_owned(),
            "05".repeat(32),
            "06".repeat(32),
            "0000000000000708".to_owned(),
            "04".repeat(32),
            "000000000000090a".to_owned(),
        ]
        .concat();
        assert_eq!(hex::encode(note.signed_bytes()), expected);
    }

    #[test]
    fn a_statement_counts_for_its_validator_and_its_subnet_only() {
        let (me, other) = (Keypair::from_seed([7; 32]), Keypair::from_seed([8; 32]));
        let (mine, others) = (ValidatorKey(me.hotkey()), ValidatorKey(other.hotkey()));
        let text = sign_text(&me, &endorsement(mine));
        assert_eq!(open_text(&text, mine, subnet()), Some(endorsement(mine)));
        let open = |text: &str, key, subnet| open_text::<AuditEndorsement>(text, key, subnet);
        assert_eq!(open(&text, others, subnet()), None);
        assert_eq!(open(&text, mine, (subnet().0, 9)), None);
        assert_eq!(
            open(&sign_text(&other, &endorsement(mine)), mine, subnet()),
            None,
            "another key signed"
        );
        assert_eq!(open(&sign_text(&me, &self_test(mine)), mine, subnet()), None);
        let text = sign_text(&me, &self_test(mine));
        assert_eq!(open_text(&text, mine, subnet()), Some(self_test(mine)));
    }

    #[test]
    fn a_long_name_and_an_unknown_verdict_are_refused() {
        let mut test = self_test(named(5));
        test.kind = Text::new("x".repeat(MAX_KIND + 1)).unwrap();
        let refused = SelfTestStatement::read(&test.signed_bytes());
        assert_eq!(refused, Err(LayoutError::Value("the kind")));
        let mut bytes = endorsement(named(5)).signed_bytes();
        let place = bytes.len() - 9;
        bytes[place] = 6;
        assert_eq!(
            AuditEndorsement::read(&bytes),
            Err(LayoutError::Value("the verdict"))
        );
    }

    proptest! {
        #[test]
        fn bytes_of_strangers_are_read_back_or_refused(tail in proptest::collection::vec(any::<u8>(), 0..160)) {
            let tagged = |tag: &str| [tag.as_bytes(), &tail].concat();
            if let Ok(read) = AuditEndorsement::read(&tagged(AuditEndorsement::TAG)) {
                prop_assert_eq!(read.signed_bytes(), tagged(AuditEndorsement::TAG));
            }
            if let Ok(read) = HeaderNote::read(&tagged(HeaderNote::TAG)) {
                prop_assert_eq!(read.signed_bytes(), tagged(HeaderNote::TAG));
            }
            if let Ok(read) = SelfTestStatement::read(&tagged(SelfTestStatement::TAG)) {
                prop_assert_eq!(read.signed_bytes(), tagged(SelfTestStatement::TAG));
            }
        }
    }
}
