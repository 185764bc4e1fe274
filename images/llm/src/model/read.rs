//! From files to weights: one GGUF, or a folder with config.json and safetensors.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest as _, Sha256};

use super::gguf::Gguf;
use super::weights::stacked;
use super::{Layer, Matrix, ModelError, Result, Shape, Storage, Weights, check_gguf};

const SAFETENSORS: &str = "safetensors file";
/// The largest header that is read: a model of 1,000 layers has one of 1 MB.
const MOST_HEADER: u64 = 8 << 20;

/// A model that was read.
pub struct Loaded {
    /// The dimensions of the model.
    pub shape: Shape,
    /// The weights of the model.
    pub weights: Weights,
    /// sha256 over the weight files, and over config.json where there is one.
    pub digest: [u8; 32],
}

/// Reads a `.gguf` file, or a folder with `config.json` and one or more `.safetensors`.
///
/// # Errors
/// A file that is missing, broken or of another architecture.
pub fn load(path: &Path, storage: Storage) -> Result<Loaded> {
    if path.is_file() {
        let bytes = file(path)?;
        let digest = Sha256::digest(&bytes).into();
        let gguf = check_gguf(&bytes)?;
        let shape = gguf.shape()?;
        let weights = assemble(&Source::Gguf(&gguf), &shape, storage)?;
        return Ok(Loaded {
            shape,
            weights,
            digest,
        });
    }
    let config = file(&path.join("config.json"))?;
    let shape = Shape::from_config(&config)?;
    let mut hash = Sha256::new();
    hash.update(&config);
    let mut contents = Vec::new();
    for name in shards(path)? {
        let bytes = file(&path.join(name))?;
        hash.update(&bytes);
        contents.push(bytes);
    }
    let files = contents
        .iter()
        .map(|bytes| check_safetensors(bytes))
        .collect::<Result<Vec<_>>>()?;
    let weights = assemble(&Source::Safetensors(&files), &shape, storage)?;
    Ok(Loaded {
        shape,
        weights,
        digest: hash.finalize().into(),
    })
}

fn file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| ModelError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The names of the weight files in a folder, in order.
fn shards(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let broken = |source| ModelError::Read {
        path: folder.to_owned(),
        source,
    };
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(broken)? {
        let name = PathBuf::from(entry.map_err(broken)?.file_name());
        if name
            .extension()
            .is_some_and(|extension| extension == "safetensors")
        {
            names.insert(name);
        }
    }
    if names.is_empty() {
        return Err(broken(std::io::Error::other("no .safetensors in it")));
    }
    Ok(names)
}

enum Source<'a> {
    Gguf(&'a Gguf<'a>),
    Safetensors(&'a [SafeTensors<'a>]),
}

impl Source<'_> {
    fn name<'n>(&self, gguf: &'n str, safetensors: &'n str) -> &'n str {
        match self {
            Self::Gguf(_) => gguf,
            Self::Safetensors(_) => safetensors,
        }
    }

    fn row(&self, gguf: &str, safetensors: &str, length: usize) -> Result<Vec<f32>> {
        let name = self.name(gguf, safetensors);
        let found = match self {
            Self::Gguf(file) => file.numbers(name, &[length])?,
            Self::Safetensors(files) => first(files, name, &[length])?,
        };
        found.ok_or_else(|| ModelError::tensor(name, "it is not in the file"))
    }

    fn find(&self, gguf: &str, safetensors: &str, rows: usize, columns: usize) -> Result<Option<Matrix>> {
        let name = self.name(gguf, safetensors);
        match self {
            Self::Gguf(file) => file.matrix(name, rows, columns),
            Self::Safetensors(files) => {
                Ok(first(files, name, &[rows, columns])?.map(|values| Matrix::plain(values, rows, columns)))
            }
        }
    }

    fn matrix(&self, gguf: &str, safetensors: &str, rows: usize, columns: usize) -> Result<Matrix> {
        self.find(gguf, safetensors, rows, columns)?
            .ok_or_else(|| ModelError::tensor(self.name(gguf, safetensors), "it is not in the file"))
    }
}

fn first(files: &[SafeTensors<'_>], name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
    for file in files {
        if let Some(values) = values_of(file, name, shape)? {
            return Ok(Some(values));
        }
    }
    Ok(None)
}

fn assemble(source: &Source<'_>, shape: &Shape, storage: Storage) -> Result<Weights> {
    let (dim, ffn) = (shape.dim, shape.ffn);
    let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let mut layers = Vec::new();
    for i in 0..shape.layers {
        let matrix = |gguf: &str, safetensors: &str, rows: usize, columns: usize| {
            source
                .matrix(
                    &format!("blk.{i}.{gguf}.weight"),
                    &format!("model.layers.{i}.{safetensors}.weight"),
                    rows,
                    columns,
                )?
                .held_as(storage)
        };
        let norm = |gguf: &str, safetensors: &str| {
            source.row(
                &format!("blk.{i}.{gguf}.weight"),
                &format!("model.layers.{i}.{safetensors}.weight"),
                dim,
            )
        };
        layers.push(Layer {
            attention_norm: norm("attn_norm", "input_layernorm")?,
            qkv: stacked(vec![
                matrix("attn_q", "self_attn.q_proj", queries, dim)?,
                matrix("attn_k", "self_attn.k_proj", keys, dim)?,
                matrix("attn_v", "self_attn.v_proj", keys, dim)?,
            ]),
            output: vec![matrix("attn_output", "self_attn.o_proj", dim, queries)?],
            ffn_norm: norm("ffn_norm", "post_attention_layernorm")?,
            gate_up: stacked(vec![
                matrix("ffn_gate", "mlp.gate_proj", ffn, dim)?,
                matrix("ffn_up", "mlp.up_proj", ffn, dim)?,
            ]),
            down: vec![matrix("ffn_down", "mlp.down_proj", dim, ffn)?],
        });
    }
    let embedding = source
        .matrix(
            "token_embd.weight",
            "model.embed_tokens.weight",
            shape.vocabulary,
            dim,
        )?
        .held_as(storage)?;
    // Without a head of its own, a model reads its embedding the other way.
    let head = match source.find("output.weight", "lm_head.weight", shape.vocabulary, dim)? {
        Some(head) => head.held_as(storage)?,
        None => embedding.clone(),
    };
    Ok(Weights {
        embedding: embedding.values()?,
        layers,
        norm: source.row("output_norm.weight", "model.norm.weight", dim)?,
        head: vec![head],
    })
}

/// Whether the file is whole: header and tensors fit, no tensor overlaps another.
///
/// # Errors
/// Checks a safetensors file and names its first defect. It never panics, and allocates in proportion to the header.
pub fn check_safetensors(bytes: &[u8]) -> Result<SafeTensors<'_>> {
    let length = bytes
        .first_chunk::<8>()
        .map(|chunk| u64::from_le_bytes(*chunk))
        .ok_or_else(|| ModelError::malformed(SAFETENSORS, "shorter than its length"))?;
    if length > MOST_HEADER || length > bytes.len() as u64 - 8 {
        return Err(ModelError::malformed(
            SAFETENSORS,
            format!("its header claims {length} bytes"),
        ));
    }
    SafeTensors::deserialize(bytes).map_err(|error| ModelError::malformed(SAFETENSORS, error.to_string()))
}

/// The numbers of a tensor that has this shape.
fn values_of(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
    let Ok(view) = file.tensor(name) else {
        return Ok(None);
    };
    if view.shape() != shape {
        return Err(ModelError::tensor(
            name,
            format!("it is {:?}, the shape asks for {shape:?}", view.shape()),
        ));
    }
    let pairs = || view.data().as_chunks::<2>().0.iter();
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a foreign list of types that grows; we read three"
    )]
    let values = match view.dtype() {
        Dtype::F32 => view
            .data()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect(),
        Dtype::F16 => pairs().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        other => {
            return Err(ModelError::tensor(
                name,
                format!("its type {other:?} is not read"),
            ));
        }
    };
    Ok(Some(values))
}
