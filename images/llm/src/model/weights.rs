//! The weights of a Llama as both backends take them: rows of numbers, or rows of quantised blocks.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Tensor};
use half::{bf16, f16};

use super::{ModelError, Result};

/// How weights are held. Arithmetic is in f32 everywhere; a quantised product also quantises its input, as llama.cpp
/// does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// As the file has them.
    AsGiven,
    /// Rounded to half precision.
    F16,
    /// Rounded to bfloat16.
    Bf16,
    /// Blocks of 32 with eight bits each.
    Q8_0,
    /// Blocks of 32 with four bits each.
    Q4_0,
}

impl Storage {
    /// As the command line and the model's digest spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AsGiven => "as-given",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// The storage of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::AsGiven, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0]
            .into_iter()
            .find(|storage| storage.name() == name)
    }
}

/// A matrix by rows.
#[derive(Clone)]
pub enum Matrix {
    /// `rows × columns` numbers.
    Plain {
        /// The numbers, row after row.
        values: Vec<f32>,
        /// The number of outputs.
        rows: usize,
        /// The number of inputs.
        columns: usize,
    },
    /// Quantised blocks along the columns.
    Blocks(Arc<QTensor>),
}

/// Matrices that share their input; their outputs stand one after the other.
pub type Linear = Vec<Matrix>;

/// One block of a Llama.
pub struct Layer {
    /// The norm's weights before attention.
    pub attention_norm: Vec<f32>,
    /// Queries, keys, values.
    pub qkv: Linear,
    /// From the heads back to the stream.
    pub output: Linear,
    /// Before the feed-forward part.
    pub ffn_norm: Vec<f32>,
    /// Gate, then up.
    pub gate_up: Linear,
    /// Back to the stream.
    pub down: Linear,
}

/// All of a Llama's weights.
pub struct Weights {
    /// One row a token.
    pub embedding: Vec<f32>,
    /// The weights of the blocks, in order.
    pub layers: Vec<Layer>,
    /// Before the head.
    pub norm: Vec<f32>,
    /// To the logits.
    pub head: Linear,
}

impl Matrix {
    /// From rows of numbers.
    pub(super) fn plain(values: Vec<f32>, rows: usize, columns: usize) -> Self {
        Self::Plain {
            values,
            rows,
            columns,
        }
    }

    /// From a GGUF tensor's bytes. The length was checked against type and shape.
    pub(super) fn blocks(bytes: &[u8], dtype: GgmlDType, rows: usize, columns: usize) -> Result<Self> {
        let storage = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, dtype)?;
        let tensor = QTensor::new(storage, (rows, columns))?;
        if matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16) {
            let values = tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()?;
            return Ok(Self::plain(values, rows, columns));
        }
        Ok(Self::Blocks(Arc::new(tensor)))
    }

    /// Its numbers, whatever they are held as.
    pub(crate) fn values(&self) -> Result<Vec<f32>> {
        match self {
            Self::Plain { values, .. } => Ok(values.clone()),
            Self::Blocks(tensor) => Ok(tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()?),
        }
    }

    /// Held another way. Blocks stay what they are.
    pub(super) fn held_as(self, storage: Storage) -> Result<Self> {
        let (mut values, rows, columns) = match self {
            Self::Plain {
                values,
                rows,
                columns,
            } => (values, rows, columns),
            blocks @ Self::Blocks(_) if storage == Storage::AsGiven => return Ok(blocks),
            Self::Blocks(_) => {
                return Err(ModelError::malformed(
                    "weights",
                    "they are quantised already; take them as given",
                ));
            }
        };
        let blocks = match storage {
            Storage::AsGiven => None,
            Storage::F16 => {
                values.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
                None
            }
            Storage::Bf16 => {
                values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32());
                None
            }
            Storage::Q8_0 => Some(GgmlDType::Q8_0),
            Storage::Q4_0 => Some(GgmlDType::Q4_0),
        };
        match blocks {
            None => Ok(Self::plain(values, rows, columns)),
            Some(dtype) if columns.is_multiple_of(dtype.block_size()) => {
                let tensor = Tensor::from_vec(values, (rows, columns), &Device::Cpu)?;
                Ok(Self::Blocks(Arc::new(QTensor::quantize(&tensor, dtype)?)))
            }
            Some(_) => Err(ModelError::malformed(
                "weights",
                "a row is no whole number of blocks",
            )),
        }
    }
}

/// One matrix out of plain ones that share their input: fewer, larger products.
pub(super) fn stacked(parts: Vec<Matrix>) -> Linear {
    let mut all = Vec::new();
    let (mut height, mut width) = (0, 0);
    for part in &parts {
        match part {
            Matrix::Plain {
                values,
                rows,
                columns,
            } => {
                all.extend_from_slice(values);
                height += rows;
                width = *columns;
            }
            Matrix::Blocks(_) => return parts,
        }
    }
    vec![Matrix::plain(all, height, width)]
}
