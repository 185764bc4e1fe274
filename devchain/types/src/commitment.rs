//! The commitment of a hotkey through the Commitments pallet, in the layout that clients write: one variant per length
//! of raw data (`Raw0` … `Raw128` are variants 1 … 129), then hashes, then a sealed payload and larger raw data.

use codec::{Decode, DecodeWithMemTracking, Encode, Error, Input, Output};
use frame_support::{BoundedVec, traits::ConstU32};
use scale_info::{Path, Type, TypeInfo, build::Fields, build::Variants};

/// The most bytes of a `Raw` field.
pub const COMMITMENT_RAW_MAX: usize = 128;
/// The most bytes of a `BigRaw` field.
const BIG_RAW_MAX: u32 = 512;
/// The most bytes of a sealed payload.
const SEALED_MAX: u32 = 1024;
/// The most fields of a commitment that decode at all; the pallet allows fewer.
pub const MAX_COMMITMENT_FIELDS: u32 = 3;

/// One field of a commitment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommitmentData {
    /// An empty field.
    None,
    /// At most 128 bytes in the clear.
    Raw(BoundedVec<u8, ConstU32<128>>),
    /// A BLAKE2b-256 hash.
    BlakeTwo256([u8; 32]),
    /// A SHA-256 hash.
    Sha256([u8; 32]),
    /// A Keccak-256 hash.
    Keccak256([u8; 32]),
    /// A SHA3-256 hash.
    ShaThree256([u8; 32]),
    /// A payload sealed until a beacon's round.
    TimelockEncrypted {
        /// The ciphertext, sealed to a round.
        encrypted: BoundedVec<u8, ConstU32<SEALED_MAX>>,
        /// The round that opens it.
        reveal_round: u64,
    },
    /// A wish that the chain forgets this neuron's bonds.
    ResetBondsFlag,
    /// At most 512 bytes in the clear.
    BigRaw(BoundedVec<u8, ConstU32<BIG_RAW_MAX>>),
}

const BLAKE: u8 = 130;
const SHA2: u8 = 131;
const KECCAK: u8 = 132;
const SHA3: u8 = 133;
const SEALED: u8 = 134;
const RESET_BONDS: u8 = 135;
const BIG_RAW: u8 = 136;

impl Encode for CommitmentData {
    fn encode_to<W: Output + ?Sized>(&self, out: &mut W) {
        match self {
            Self::None => out.push_byte(0),
            Self::Raw(bytes) => {
                // The length is at most 128, so the variant fits.
                out.push_byte(u8::try_from(bytes.len().saturating_add(1)).unwrap_or(u8::MAX));
                out.write(bytes);
            }
            Self::BlakeTwo256(hash) => (BLAKE, hash).encode_to(out),
            Self::Sha256(hash) => (SHA2, hash).encode_to(out),
            Self::Keccak256(hash) => (KECCAK, hash).encode_to(out),
            Self::ShaThree256(hash) => (SHA3, hash).encode_to(out),
            Self::TimelockEncrypted {
                encrypted,
                reveal_round,
            } => (SEALED, encrypted, reveal_round).encode_to(out),
            Self::ResetBondsFlag => out.push_byte(RESET_BONDS),
            Self::BigRaw(bytes) => (BIG_RAW, bytes).encode_to(out),
        }
    }
}

impl Decode for CommitmentData {
    fn decode<I: Input>(input: &mut I) -> Result<Self, Error> {
        Ok(match input.read_byte()? {
            0 => Self::None,
            variant @ 1..=129 => {
                let mut bytes = vec![0; usize::from(variant).saturating_sub(1)];
                input.read(&mut bytes)?;
                Self::Raw(
                    bytes
                        .try_into()
                        .map_err(|_| "raw data is longer than 128 bytes")?,
                )
            }
            BLAKE => Self::BlakeTwo256(Decode::decode(input)?),
            SHA2 => Self::Sha256(Decode::decode(input)?),
            KECCAK => Self::Keccak256(Decode::decode(input)?),
            SHA3 => Self::ShaThree256(Decode::decode(input)?),
            SEALED => Self::TimelockEncrypted {
                encrypted: Decode::decode(input)?,
                reveal_round: Decode::decode(input)?,
            },
            RESET_BONDS => Self::ResetBondsFlag,
            BIG_RAW => Self::BigRaw(Decode::decode(input)?),
            137.. => return Err("unknown kind of commitment data".into()),
        })
    }
}

impl DecodeWithMemTracking for CommitmentData {}

/// Adds the variant of raw data of each length. The length is part of the type, so each needs its own line of metadata.
macro_rules! raw_variants {
    ($variants:ident: $($length:literal $name:literal,)*) => {
        $(
            let $variants = $variants.variant($name, |v| {
                v.index($length + 1).fields(Fields::unnamed().field(|f| f.ty::<[u8; $length]>()))
            });
        )*
    };
}

impl TypeInfo for CommitmentData {
    type Identity = Self;

    fn type_info() -> Type {
        fn hash(variants: Variants, name: &'static str, index: u8) -> Variants {
            variants.variant(name, |v| {
                v.index(index)
                    .fields(Fields::unnamed().field(|f| f.ty::<[u8; 32]>()))
            })
        }
        let variants = Variants::new().variant("None", |v| v.index(0));
        raw_variants! { variants:
            0 "Raw0", 1 "Raw1", 2 "Raw2", 3 "Raw3", 4 "Raw4", 5 "Raw5", 6 "Raw6", 7 "Raw7", 8 "Raw8",
            9 "Raw9", 10 "Raw10", 11 "Raw11", 12 "Raw12", 13 "Raw13", 14 "Raw14", 15 "Raw15", 16 "Raw16",
            17 "Raw17", 18 "Raw18", 19 "Raw19", 20 "Raw20", 21 "Raw21", 22 "Raw22", 23 "Raw23", 24 "Raw24",
            25 "Raw25", 26 "Raw26", 27 "Raw27", 28 "Raw28", 29 "Raw29", 30 "Raw30", 31 "Raw31", 32 "Raw32",
            33 "Raw33", 34 "Raw34", 35 "Raw35", 36 "Raw36", 37 "Raw37", 38 "Raw38", 39 "Raw39", 40 "Raw40",
            41 "Raw41", 42 "Raw42", 43 "Raw43", 44 "Raw44", 45 "Raw45", 46 "Raw46", 47 "Raw47", 48 "Raw48",
            49 "Raw49", 50 "Raw50", 51 "Raw51", 52 "Raw52", 53 "Raw53", 54 "Raw54", 55 "Raw55", 56 "Raw56",
            57 "Raw57", 58 "Raw58", 59 "Raw59", 60 "Raw60", 61 "Raw61", 62 "Raw62", 63 "Raw63", 64 "Raw64",
            65 "Raw65", 66 "Raw66", 67 "Raw67", 68 "Raw68", 69 "Raw69", 70 "Raw70", 71 "Raw71", 72 "Raw72",
            73 "Raw73", 74 "Raw74", 75 "Raw75", 76 "Raw76", 77 "Raw77", 78 "Raw78", 79 "Raw79", 80 "Raw80",
            81 "Raw81", 82 "Raw82", 83 "Raw83", 84 "Raw84", 85 "Raw85", 86 "Raw86", 87 "Raw87", 88 "Raw88",
            89 "Raw89", 90 "Raw90", 91 "Raw91", 92 "Raw92", 93 "Raw93", 94 "Raw94", 95 "Raw95", 96 "Raw96",
            97 "Raw97", 98 "Raw98", 99 "Raw99", 100 "Raw100", 101 "Raw101", 102 "Raw102", 103 "Raw103",
            104 "Raw104", 105 "Raw105", 106 "Raw106", 107 "Raw107", 108 "Raw108", 109 "Raw109",
            110 "Raw110", 111 "Raw111", 112 "Raw112", 113 "Raw113", 114 "Raw114", 115 "Raw115",
            116 "Raw116", 117 "Raw117", 118 "Raw118", 119 "Raw119", 120 "Raw120", 121 "Raw121",
            122 "Raw122", 123 "Raw123", 124 "Raw124", 125 "Raw125", 126 "Raw126", 127 "Raw127",
            128 "Raw128",
        }
        let variants = hash(variants, "BlakeTwo256", BLAKE);
        let variants = hash(variants, "Sha256", SHA2);
        let variants = hash(variants, "Keccak256", KECCAK);
        let variants = hash(variants, "ShaThree256", SHA3);
        let variants = variants
            .variant("TimelockEncrypted", |v| {
                v.index(SEALED).fields(
                    Fields::named()
                        .field(|f| f.ty::<BoundedVec<u8, ConstU32<SEALED_MAX>>>().name("encrypted"))
                        .field(|f| f.ty::<u64>().name("reveal_round")),
                )
            })
            .variant("ResetBondsFlag", |v| v.index(RESET_BONDS))
            .variant("BigRaw", |v| {
                v.index(BIG_RAW)
                    .fields(Fields::unnamed().field(|f| f.ty::<BoundedVec<u8, ConstU32<BIG_RAW_MAX>>>()))
            });
        Type::builder()
            .path(Path::new("Data", "pallet_commitments::types"))
            .variant(variants)
    }
}

/// The commitment of one hotkey on one subnet.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
pub struct CommitmentInfo {
    /// In the order in which they were given.
    pub fields: BoundedVec<CommitmentData, ConstU32<MAX_COMMITMENT_FIELDS>>,
}

/// A commitment as stored.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// Rao held for it. The public chain asks for none.
    pub deposit: u64,
    /// Block in which it was set.
    pub block: u32,
    /// The published fields.
    pub info: CommitmentInfo,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_data_of_every_length_keeps_its_variant() {
        for length in 0..=COMMITMENT_RAW_MAX {
            let data = CommitmentData::Raw(vec![7; length].try_into().unwrap());
            let bytes = data.encode();
            assert_eq!(usize::from(bytes[0]), length + 1);
            assert_eq!(bytes.len(), length + 1);
            assert_eq!(CommitmentData::decode(&mut &bytes[..]).unwrap(), data);
        }
    }

    #[test]
    fn the_other_variants_round_trip() {
        for data in [
            CommitmentData::None,
            CommitmentData::BlakeTwo256([1; 32]),
            CommitmentData::Sha256([2; 32]),
            CommitmentData::Keccak256([3; 32]),
            CommitmentData::ShaThree256([4; 32]),
            CommitmentData::TimelockEncrypted {
                encrypted: vec![5; 300].try_into().unwrap(),
                reveal_round: 9,
            },
            CommitmentData::ResetBondsFlag,
            CommitmentData::BigRaw(vec![6; 512].try_into().unwrap()),
        ] {
            assert_eq!(CommitmentData::decode(&mut &data.encode()[..]).unwrap(), data);
        }
    }

    #[test]
    fn unknown_and_truncated_data_is_refused() {
        for bytes in [&[137][..], &[255], &[2], &[130, 1, 2], &[]] {
            assert!(CommitmentData::decode(&mut &bytes[..]).is_err(), "{bytes:?}");
        }
    }
}
