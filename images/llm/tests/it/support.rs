//! Models made up on the spot, written in both formats.

use std::path::Path;

use anyhow::Context as _;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use muster_image_llm::model::{Loaded, Storage, load};

pub(crate) const VOCABULARY: usize = 320;
pub(crate) const DIM: usize = 64;
pub(crate) const LAYERS: usize = 2;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const HEAD: usize = 16;
pub(crate) const FFN: usize = 96;
pub(crate) const CONTEXT: usize = 256;

/// A tensor with its name in safetensors and in GGUF.
pub(crate) struct Named {
    pub(crate) name: String,
    gguf: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// Numbers that look random and are the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ self.0 >> 33;
        x.wrapping_mul(0xFF51_AFD7_ED55_8CCD) ^ x >> 29
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn small(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32 * 2.0 - 1.0
    }
}

pub(crate) fn tensors() -> Vec<Named> {
    let mut random = Random(7);
    let mut all = Vec::new();
    let mut add = |name: String, gguf: String, shape: &[usize], scale: f32, base: f32| {
        let count = shape.iter().product();
        let values = (0..count).map(|_| base + scale * random.small()).collect();
        all.push(Named {
            name,
            gguf,
            shape: shape.to_vec(),
            values,
        });
    };
    add(
        "model.embed_tokens.weight".into(),
        "token_embd.weight".into(),
        &[VOCABULARY, DIM],
        1.0,
        0.0,
    );
    add(
        "model.norm.weight".into(),
        "output_norm.weight".into(),
        &[DIM],
        0.1,
        1.0,
    );
    for i in 0..LAYERS {
        let kinds: [(&str, &str, &[usize]); 9] = [
            ("input_layernorm", "attn_norm", &[DIM]),
            ("post_attention_layernorm", "ffn_norm", &[DIM]),
            ("self_attn.q_proj", "attn_q", &[HEADS * HEAD, DIM]),
            ("self_attn.k_proj", "attn_k", &[KV_HEADS * HEAD, DIM]),
            ("self_attn.v_proj", "attn_v", &[KV_HEADS * HEAD, DIM]),
            ("self_attn.o_proj", "attn_output", &[DIM, HEADS * HEAD]),
            ("mlp.gate_proj", "ffn_gate", &[FFN, DIM]),
            ("mlp.up_proj", "ffn_up", &[FFN, DIM]),
            ("mlp.down_proj", "ffn_down", &[DIM, FFN]),
        ];
        for (name, gguf, shape) in kinds {
            let (scale, base) = if shape.len() == 1 { (0.1, 1.0) } else { (0.3, 0.0) };
            add(
                format!("model.layers.{i}.{name}.weight"),
                format!("blk.{i}.{gguf}.weight"),
                shape,
                scale,
                base,
            );
        }
    }
    all
}

pub(crate) fn config() -> String {
    format!(
        r#"{{"model_type":"llama","vocab_size":{VOCABULARY},"hidden_size":{DIM},"intermediate_size":{FFN},"num_hidden_layers":{LAYERS},
        "num_attention_heads":{HEADS},"num_key_value_heads":{KV_HEADS},"head_dim":{HEAD},"max_position_embeddings":{CONTEXT},
        "rms_norm_eps":1e-5,"rope_theta":10000.0,"eos_token_id":256,"tie_word_embeddings":true}}"#
    )
}

/// The bytes of a safetensors file in F32.
pub(crate) fn safetensors() -> anyhow::Result<Vec<u8>> {
    let tensors = tensors();
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|t| t.values.iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, bytes)| {
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, t.shape.clone(), bytes)?;
            Ok((t.name.clone(), view))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(safetensors::serialize(views, None)?)
}

/// A folder with the model.
pub(crate) fn folder() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("config.json"), config())?;
    std::fs::write(folder.path().join("model.safetensors"), safetensors()?)?;
    Ok(folder)
}

pub(crate) fn loaded(storage: Storage) -> anyhow::Result<Loaded> {
    Ok(load(folder()?.path(), storage)?)
}

/// The same model as GGUF: rows of queries and keys reordered, matrices in `dtype`.
pub(crate) fn gguf(dtype: GgmlDType) -> anyhow::Result<Vec<u8>> {
    let mut head = b"GGUF\x03\0\0\0".to_vec();
    let tensors = tensors();
    let entries: [(&str, u32, Vec<u8>); 11] = [
        (
            "general.architecture",
            8,
            [&5_u64.to_le_bytes()[..], b"llama"].concat(),
        ),
        ("llama.block_count", 4, (LAYERS as u32).to_le_bytes().into()),
        ("llama.embedding_length", 4, (DIM as u32).to_le_bytes().into()),
        ("llama.feed_forward_length", 4, (FFN as u32).to_le_bytes().into()),
        (
            "llama.attention.head_count",
            4,
            (HEADS as u32).to_le_bytes().into(),
        ),
        (
            "llama.attention.head_count_kv",
            4,
            (KV_HEADS as u32).to_le_bytes().into(),
        ),
        (
            "llama.attention.key_length",
            4,
            (HEAD as u32).to_le_bytes().into(),
        ),
        (
            "llama.attention.layer_norm_rms_epsilon",
            6,
            1e-5_f32.to_le_bytes().into(),
        ),
        ("llama.context_length", 4, (CONTEXT as u32).to_le_bytes().into()),
        ("tokenizer.ggml.eos_token_id", 4, 256_u32.to_le_bytes().into()),
        (
            "tokenizer.ggml.tokens",
            9,
            [
                &8_u32.to_le_bytes()[..],
                &1_u64.to_le_bytes(),
                &1_u64.to_le_bytes(),
                b"x",
            ]
            .concat(),
        ),
    ];
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((entries.len() as u64).to_le_bytes());
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    for (name, kind, value) in &entries {
        text(&mut head, name);
        head.extend(kind.to_le_bytes());
        head.extend(value);
    }
    let mut data = Vec::new();
    for tensor in &tensors {
        let plain = tensor.shape.len() == 1;
        let values = match tensor.gguf.as_str() {
            name if name.contains("attn_q.") || name.contains("attn_k.") => neighbours(tensor),
            _ => tensor.values.clone(),
        };
        let (code, bytes) = match (plain, dtype) {
            (true, _) | (false, GgmlDType::F32) => {
                (0_u32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
            }
            (false, dtype) => {
                let code = match dtype {
                    GgmlDType::F16 => 1,
                    GgmlDType::Q4_0 => 2,
                    GgmlDType::Q8_0 => 8,
                    other => anyhow::bail!("no code for {other:?} here"),
                };
                let source = Tensor::from_vec(values, tensor.shape.clone(), &Device::Cpu)?;
                (code, QTensor::quantize(&source, dtype)?.data()?.into_owned())
            }
        };
        text(&mut head, &tensor.gguf);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        for n in tensor.shape.iter().rev() {
            head.extend((*n as u64).to_le_bytes());
        }
        head.extend(code.to_le_bytes());
        head.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    head.resize(head.len().next_multiple_of(32), 0);
    head.extend(data);
    Ok(head)
}

/// Rows of a head in the order that GGUF wants: first and second half interleaved.
fn neighbours(tensor: &Named) -> Vec<f32> {
    let rows: Vec<&[f32]> = tensor.values.chunks(DIM).collect();
    let heads = rows.chunks(HEAD);
    heads
        .flat_map(|head| {
            let (first, second) = head.split_at(HEAD / 2);
            first
                .iter()
                .zip(second)
                .flat_map(|(a, b)| [*a, *b])
                .flatten()
                .copied()
                .collect::<Vec<f32>>()
        })
        .collect()
}

pub(crate) fn load_gguf(dtype: GgmlDType) -> anyhow::Result<Loaded> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, gguf(dtype)?)?;
    load_file(&file)
}

pub(crate) fn load_file(file: &Path) -> anyhow::Result<Loaded> {
    load(file, Storage::AsGiven).context("the file is whole")
}
