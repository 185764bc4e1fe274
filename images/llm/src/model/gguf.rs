//! GGUF files of the llama architecture: metadata, tensor infos, aligned data.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3.
//!
//! Read with bounds of our own: every length is checked against what is left of the file before anything is allocated.

use std::collections::BTreeMap;

use candle_core::quantized::GgmlDType;

use super::shape::{Rope, Shape, frequencies};
use super::{Matrix, ModelError, Result};

const PART: &str = "GGUF file";
const MOST_ENTRIES: u64 = 1 << 16;
const MOST_NAME: u64 = 1 << 16;
const MOST_ELEMENTS: u64 = 1 << 24;

/// A value that a model's shape may be made of; texts and lists are passed over.
#[derive(Clone, Debug)]
enum Value {
    Whole(u64),
    Real(f64),
    Text(String),
    Passed,
}

struct Info {
    dtype: GgmlDType,
    /// The dimensions, rows first.
    shape: Vec<usize>,
    start: usize,
    length: usize,
}

/// A file whose lengths are all true.
pub struct Gguf<'a> {
    bytes: &'a [u8],
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Info>,
}

/// Reads the header and checks that every tensor lies inside the file.
///
/// # Errors
/// Checks a GGUF file and names its first defect. It never panics, and allocates in proportion to the header.
pub fn check(bytes: &[u8]) -> Result<Gguf<'_>> {
    let mut reader = Reader { bytes, at: 0 };
    if reader.take(4)? != b"GGUF" {
        return Err(ModelError::malformed(PART, "it does not begin with GGUF"));
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(ModelError::malformed(
            PART,
            format!("version {version} is not read"),
        ));
    }
    let (tensor_count, entry_count) = (reader.u64()?, reader.u64()?);
    if tensor_count > MOST_ENTRIES || entry_count > MOST_ENTRIES {
        return Err(ModelError::malformed(PART, "more than 65,536 entries"));
    }
    let mut metadata = BTreeMap::new();
    for _ in 0..entry_count {
        let name = reader.text()?;
        let kind = reader.u32()?;
        let value = reader.value(kind)?;
        metadata.insert(name, value);
    }
    let mut infos = Vec::new();
    for _ in 0..tensor_count {
        infos.push(reader.info()?);
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Value::Whole(n)) if n.is_power_of_two() && (8..=1 << 16).contains(n) => *n,
        Some(_) => {
            return Err(ModelError::malformed(
                PART,
                "its alignment is no power of two from 8 up",
            ));
        }
    };
    let data = (reader.at as u64).next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for (name, dtype, shape, offset) in infos {
        let info = placed(&name, dtype, shape, offset, alignment, data, bytes.len() as u64)?;
        tensors.insert(name, info);
    }
    Ok(Gguf {
        bytes,
        metadata,
        tensors,
    })
}

/// Where a tensor's bytes are, if they are inside the file.
fn placed(
    name: &str,
    dtype: GgmlDType,
    shape: Vec<usize>,
    offset: u64,
    alignment: u64,
    data: u64,
    size: u64,
) -> Result<Info> {
    let outside = || ModelError::tensor(name, "it is not inside the file");
    let elements = shape
        .iter()
        .try_fold(1_u64, |product, n| product.checked_mul(*n as u64))
        .ok_or_else(outside)?;
    let columns = shape.last().copied().unwrap_or(1);
    if !columns.is_multiple_of(dtype.block_size()) || !offset.is_multiple_of(alignment) {
        return Err(ModelError::tensor(
            name,
            "its rows are no whole blocks, or it is not aligned",
        ));
    }
    let length = (elements / dtype.block_size() as u64)
        .checked_mul(dtype.type_size() as u64)
        .ok_or_else(outside)?;
    let start = data.checked_add(offset).ok_or_else(outside)?;
    if start.checked_add(length).is_none_or(|end| end > size) {
        return Err(outside());
    }
    Ok(Info {
        dtype,
        shape,
        start: start as usize,
        length: length as usize,
    })
}

impl Gguf<'_> {
    /// The shape that the metadata describe.
    ///
    /// # Errors
    /// Another architecture, missing numbers, or numbers that do not go together.
    pub fn shape(&self) -> Result<Shape> {
        match self.metadata.get("general.architecture") {
            Some(Value::Text(name)) if name == "llama" => {}
            Some(_) | None => return Err(ModelError::malformed(PART, "its architecture is not llama")),
        }
        let heads = self.whole("llama.attention.head_count")?;
        let dim = self.whole("llama.embedding_length")?;
        let head_dim = match self.whole("llama.attention.key_length") {
            Ok(width) => width,
            Err(_) => dim.checked_div(heads).unwrap_or(0),
        };
        if self
            .whole("llama.rope.dimension_count")
            .is_ok_and(|turned| turned != head_dim)
        {
            return Err(ModelError::malformed(PART, "only a part of each head is turned"));
        }
        if self
            .metadata
            .keys()
            .any(|key| key.starts_with("llama.rope.scaling."))
        {
            return Err(ModelError::malformed(
                PART,
                "rope scaling other than rope_freqs is not read",
            ));
        }
        let mut turns = frequencies(self.real("llama.rope.freq_base").unwrap_or(10_000.0), head_dim);
        if let Some(factors) = self.numbers("rope_freqs.weight", &[head_dim / 2])? {
            for (f, factor) in turns.iter_mut().zip(factors) {
                *f /= f64::from(factor);
            }
        }
        let token = |key: &str| self.whole(key).ok().map(|id| id.min(u32::MAX as usize) as u32);
        let embedding = self.tensors.get("token_embd.weight");
        Shape {
            layers: self.whole("llama.block_count")?,
            dim,
            heads,
            kv_heads: self.whole("llama.attention.head_count_kv").unwrap_or(heads),
            head_dim,
            ffn: self.whole("llama.feed_forward_length")?,
            vocabulary: embedding
                .and_then(|info| info.shape.first().copied())
                .unwrap_or(0),
            context: self.whole("llama.context_length")?,
            eps: self.real("llama.attention.layer_norm_rms_epsilon")? as f32,
            rope: Rope {
                frequencies: turns.into_iter().map(|f| f as f32).collect(),
                neighbours: true,
            },
            ends: token("tokenizer.ggml.eos_token_id").into_iter().collect(),
            begin: match self.metadata.get("tokenizer.ggml.add_bos_token") {
                Some(Value::Whole(1)) => token("tokenizer.ggml.bos_token_id"),
                Some(_) | None => None,
            },
        }
        .checked(PART)
    }

    /// A matrix of this shape.
    pub(super) fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<Option<Matrix>> {
        let Some(info) = self.tensors.get(name) else {
            return Ok(None);
        };
        if info.shape != [rows, columns] {
            let what = format!("it is {:?}, the shape asks for [{rows}, {columns}]", info.shape);
            return Err(ModelError::tensor(name, what));
        }
        let bytes = info
            .start
            .checked_add(info.length)
            .and_then(|end| self.bytes.get(info.start..end));
        let bytes = bytes.ok_or_else(|| ModelError::tensor(name, "it is not inside the file"))?;
        Matrix::blocks(bytes, info.dtype, rows, columns).map(Some)
    }

    /// A row of plain numbers.
    pub(super) fn numbers(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        let Some(info) = self.tensors.get(name) else {
            return Ok(None);
        };
        if info.shape != shape || info.dtype != GgmlDType::F32 {
            return Err(ModelError::tensor(name, "it is no F32 row of the right length"));
        }
        let bytes = info
            .start
            .checked_add(info.length)
            .and_then(|end| self.bytes.get(info.start..end));
        Ok(bytes.map(|bytes| {
            bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect()
        }))
    }

    fn whole(&self, key: &str) -> Result<usize> {
        match self.metadata.get(key) {
            Some(Value::Whole(n)) => Ok(usize::try_from(*n).unwrap_or(usize::MAX)),
            Some(_) | None => Err(ModelError::malformed(
                PART,
                format!("{key} is missing or no whole number"),
            )),
        }
    }

    fn real(&self, key: &str) -> Result<f64> {
        match self.metadata.get(key) {
            Some(Value::Real(x)) => Ok(*x),
            Some(_) | None => Err(ModelError::malformed(
                PART,
                format!("{key} is missing or no number"),
            )),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let cut = || ModelError::malformed(PART, format!("it ends inside its header, at byte {}", self.at));
        let end = usize::try_from(length)
            .ok()
            .and_then(|length| self.at.checked_add(length))
            .ok_or_else(cut)?;
        let taken = self.bytes.get(self.at..end).ok_or_else(cut)?;
        self.at = end;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N as u64)?;
        bytes
            .try_into()
            .map_err(|_| ModelError::malformed(PART, "cut short"))
    }

    fn u32(&mut self) -> Result<u32> {
        self.number().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.number().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let length = self.u64()?;
        if length > MOST_NAME {
            return Err(ModelError::malformed(PART, "a name of more than 64 KiB"));
        }
        String::from_utf8(self.take(length)?.to_vec())
            .map_err(|_| ModelError::malformed(PART, "a name is no text"))
    }

    fn value(&mut self, kind: u32) -> Result<Value> {
        let whole = |n: i64| u64::try_from(n).map_or(Value::Passed, Value::Whole);
        Ok(match kind {
            0 | 7 => Value::Whole(u64::from(u8::from_le_bytes(self.number()?))),
            1 => whole(i64::from(i8::from_le_bytes(self.number()?))),
            2 => Value::Whole(u64::from(u16::from_le_bytes(self.number()?))),
            3 => whole(i64::from(i16::from_le_bytes(self.number()?))),
            4 => Value::Whole(u64::from(self.u32()?)),
            5 => whole(i64::from(i32::from_le_bytes(self.number()?))),
            6 => Value::Real(f64::from(f32::from_le_bytes(self.number()?))),
            8 => {
                let length = self.u64()?;
                let bytes = self.take(length)?;
                if length > MOST_NAME {
                    return Ok(Value::Passed);
                }
                std::str::from_utf8(bytes).map_or(Value::Passed, |text| Value::Text(text.to_owned()))
            }
            9 => self.pass_list()?,
            10 => Value::Whole(self.u64()?),
            11 => whole(i64::from_le_bytes(self.number()?)),
            12 => Value::Real(f64::from_le_bytes(self.number()?)),
            other => {
                return Err(ModelError::malformed(
                    PART,
                    format!("unknown type of value {other}"),
                ));
            }
        })
    }

    fn pass_list(&mut self) -> Result<Value> {
        let (kind, count) = (self.u32()?, self.u64()?);
        if count > MOST_ELEMENTS {
            return Err(ModelError::malformed(
                PART,
                "a list of more than 16 million values",
            ));
        }
        let width = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                for _ in 0..count {
                    let length = self.u64()?;
                    self.take(length)?;
                }
                0
            }
            other => {
                return Err(ModelError::malformed(
                    PART,
                    format!("a list of values of type {other}"),
                ));
            }
        };
        self.take(count * width)?;
        Ok(Value::Passed)
    }

    fn info(&mut self) -> Result<(String, GgmlDType, Vec<usize>, u64)> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if !(1..=4).contains(&dimensions) {
            return Err(ModelError::tensor(&name, format!("{dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let n = usize::try_from(self.u64()?).unwrap_or(0);
            if n == 0 || n > 1 << 32 {
                return Err(ModelError::tensor(&name, "a dimension is 0 or beyond 2^32"));
            }
            shape.push(n);
        }
        shape.reverse();
        let dtype = match self.u32()? {
            0 => GgmlDType::F32,
            1 => GgmlDType::F16,
            2 => GgmlDType::Q4_0,
            3 => GgmlDType::Q4_1,
            6 => GgmlDType::Q5_0,
            7 => GgmlDType::Q5_1,
            8 => GgmlDType::Q8_0,
            10 => GgmlDType::Q2K,
            11 => GgmlDType::Q3K,
            12 => GgmlDType::Q4K,
            13 => GgmlDType::Q5K,
            14 => GgmlDType::Q6K,
            30 => GgmlDType::BF16,
            other => return Err(ModelError::tensor(&name, format!("its type {other} is not read"))),
        };
        Ok((name, dtype, shape, self.u64()?))
    }
}
