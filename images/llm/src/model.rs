//! A model: its shape, its weights in any of the supported formats, and the digest that names it.

mod gguf;
mod read;
mod shape;
mod weights;

use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

pub use gguf::check as check_gguf;
pub use read::{Loaded, check_safetensors, load};
pub use shape::{Rope, Shape};
pub use weights::{Layer, Linear, Matrix, Storage, Weights};

/// Why a model cannot be used. The file is at fault, or whoever gave it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file is missing or cannot be read.
    #[error("cannot read {path}; a model folder holds config.json and *.safetensors, or one .gguf")]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file does not contain what it should.
    #[error("the model's {part} is broken or not supported: {what}")]
    Malformed {
        /// Which file or which part of it.
        part: &'static str,
        /// The defect as text.
        what: String,
    },
    /// A tensor is not there, or not as large as the shape asks for.
    #[error("the model's tensor {name} is missing or does not fit: {what}")]
    Tensor {
        /// Its name in the file.
        name: String,
        /// The defect as text.
        what: String,
    },
    /// The tensor library refused it.
    #[error("the tensor library refused the model's weights")]
    Library(#[from] candle_core::Error),
}

impl ModelError {
    pub(crate) fn malformed(part: &'static str, what: impl Into<String>) -> Self {
        Self::Malformed {
            part,
            what: what.into(),
        }
    }

    pub(crate) fn tensor(name: &str, what: impl Into<String>) -> Self {
        Self::Tensor {
            name: name.to_owned(),
            what: what.into(),
        }
    }
}

/// The result of every function here.
pub type Result<T> = std::result::Result<T, ModelError>;

/// The digest over everything that decides what a model writes: weights, the type they are computed in, tokenizer,
/// template.
#[must_use]
pub fn model_id(weights: &[u8; 32], storage: Storage, tokenizer: &[u8; 32], template: &[u8; 32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"muster/model-id/v1\0");
    hash.update(weights);
    hash.update(sha256(storage.name().as_bytes()));
    hash.update(tokenizer);
    hash.update(template);
    hash.finalize().into()
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_model_is_in_its_id() {
        let (weights, tokenizer, template) = ([1; 32], [2; 32], [3; 32]);
        let id = model_id(&weights, Storage::AsGiven, &tokenizer, &template);
        // It stands in evidence and in job descriptions: it may not change.
        assert_eq!(
            hex::encode(id),
            "c0fc67ed3f98cf124cea2b38d256cc56032ac8c430ea733e7d2d65db53b4b63d"
        );
        for other in [
            model_id(&[0; 32], Storage::AsGiven, &tokenizer, &template),
            model_id(&weights, Storage::Q8_0, &tokenizer, &template),
            model_id(&weights, Storage::AsGiven, &template, &tokenizer),
            model_id(&weights, Storage::AsGiven, &tokenizer, &[0; 32]),
        ] {
            assert_ne!(other, id);
        }
    }
}
