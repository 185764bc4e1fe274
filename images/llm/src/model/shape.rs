//! The numbers that describe a Llama: how wide, how deep, how positions turn. Checked once, here.

use serde::Deserialize;

use super::{ModelError, Result};

/// The size of a model of the Llama architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The number of blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// The number of query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of the feed-forward part.
    pub ffn: usize,
    /// The number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// The longest text, in tokens.
    pub context: usize,
    /// Added under the root of each norm.
    pub eps: f32,
    /// How positions turn queries and keys.
    pub rope: Rope,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// The token that a text begins with, where the model wants one.
    pub begin: Option<u32>,
}

/// The parameters of rotary positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians a position, for each of the `head_dim / 2` planes.
    pub frequencies: Vec<f32>,
    /// Whether a plane is made of neighbours (GGUF) or of the two halves of a head (safetensors).
    pub neighbours: bool,
}

#[derive(Deserialize)]
struct Config {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    #[serde(default = "ten_thousand")]
    rope_theta: f64,
    rope_scaling: Option<Scaling>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    eos_token_id: Option<OneOrMore>,
    bos_token_id: Option<u32>,
}

/// Llama 3.1's stretching of the slow planes.
#[derive(Deserialize)]
struct Scaling {
    #[serde(alias = "type")]
    rope_type: String,
    factor: f64,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

fn ten_thousand() -> f64 {
    10_000.0
}

impl Shape {
    /// From Hugging Face's config.json.
    ///
    /// # Errors
    /// Another architecture, or numbers that do not go together.
    pub fn from_config(bytes: &[u8]) -> Result<Self> {
        let refuse = |what: &str| Err(ModelError::malformed("config.json", what));
        let c: Config = serde_json::from_slice(bytes)
            .map_err(|error| ModelError::malformed("config.json", error.to_string()))?;
        if c.model_type != "llama" {
            return refuse("model_type is not llama");
        }
        if c.attention_bias || c.mlp_bias {
            return refuse("biases are not supported");
        }
        if c.hidden_act.as_deref().is_some_and(|act| act != "silu") {
            return refuse("hidden_act is not silu");
        }
        let head_dim = c
            .head_dim
            .or_else(|| c.hidden_size.checked_div(c.num_attention_heads))
            .unwrap_or(0);
        let mut frequencies = frequencies(c.rope_theta, head_dim);
        if let Some(scaling) = c.rope_scaling.filter(|scaling| scaling.rope_type != "default") {
            stretch(&mut frequencies, &scaling)?;
        }
        Self {
            layers: c.num_hidden_layers,
            dim: c.hidden_size,
            heads: c.num_attention_heads,
            kv_heads: c.num_key_value_heads.unwrap_or(c.num_attention_heads),
            head_dim,
            ffn: c.intermediate_size,
            vocabulary: c.vocab_size,
            context: c.max_position_embeddings,
            eps: c.rms_norm_eps as f32,
            rope: Rope {
                frequencies: frequencies.into_iter().map(|f| f as f32).collect(),
                neighbours: false,
            },
            ends: match c.eos_token_id {
                None => vec![],
                Some(OneOrMore::One(id)) => vec![id],
                Some(OneOrMore::More(ids)) => ids,
            },
            begin: c.bos_token_id,
        }
        .checked("config.json")
    }

    /// Refuses what cannot be a model, before anything is allocated for it.
    pub(super) fn checked(self, part: &'static str) -> Result<Self> {
        let within = |name: &str, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                Ok(())
            } else {
                Err(ModelError::malformed(
                    part,
                    format!("{name} is {value}, not in 1..={most}"),
                ))
            }
        };
        within("number of layers", self.layers, 512)?;
        within("width", self.dim, 1 << 16)?;
        within("number of heads", self.heads, 1024)?;
        within("number of key heads", self.kv_heads, self.heads)?;
        within("width of a head", self.head_dim, 1024)?;
        within("width of the feed-forward part", self.ffn, 1 << 18)?;
        within("vocabulary", self.vocabulary, 1 << 20)?;
        within("context", self.context, 1 << 24)?;
        if self.heads.checked_rem(self.kv_heads) != Some(0) || !self.head_dim.is_multiple_of(2) {
            return Err(ModelError::malformed(part, "the heads do not divide"));
        }
        if self.rope.frequencies.len() != self.head_dim / 2
            || !self.rope.frequencies.iter().all(|f| f.is_finite())
            || !(self.eps.is_finite() && self.eps > 0.0)
        {
            return Err(ModelError::malformed(
                part,
                "frequencies or epsilon are no numbers",
            ));
        }
        if self
            .ends
            .iter()
            .chain(&self.begin)
            .any(|id| *id as usize >= self.vocabulary)
        {
            return Err(ModelError::malformed(
                part,
                "a special token is outside the vocabulary",
            ));
        }
        Ok(self)
    }
}

/// The frequencies θ^(−2i/d) of rotary positions.
pub(super) fn frequencies(theta: f64, head_dim: usize) -> Vec<f64> {
    let planes = (head_dim / 2).min(1 << 16);
    (0..planes)
        .map(|i| theta.powf(-(i as f64) / planes as f64))
        .collect()
}

/// As Llama 3.1 defines it (`rope_scaling` of its config.json): fast planes stay, slow ones are divided, between them a
/// ramp.
fn stretch(frequencies: &mut [f64], scaling: &Scaling) -> Result<()> {
    let (Some(low), Some(high), Some(original)) = (
        scaling.low_freq_factor,
        scaling.high_freq_factor,
        scaling.original_max_position_embeddings,
    ) else {
        return Err(ModelError::malformed(
            "config.json",
            format!("rope_scaling {:?} is not supported, llama3 is", scaling.rope_type),
        ));
    };
    if scaling.rope_type != "llama3" || high <= low || scaling.factor < 1.0 {
        return Err(ModelError::malformed(
            "config.json",
            "rope_scaling is not llama3's",
        ));
    }
    for f in frequencies {
        let turns = original * *f / std::f64::consts::TAU;
        let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        *f = share * *f + (1.0 - share) * *f / scaling.factor;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"model_type":"llama","vocab_size":100,"hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
        "num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":32,"rms_norm_eps":1e-5,"eos_token_id":[0,3]}"#;

    #[test]
    fn a_config_is_read() {
        let shape = Shape::from_config(CONFIG.as_bytes()).unwrap();
        assert_eq!(
            (shape.head_dim, shape.kv_heads, shape.ends.as_slice()),
            (16, 2, [0, 3].as_slice())
        );
        assert_eq!(shape.rope.frequencies[0], 1.0);
        assert!((shape.rope.frequencies[4] - 0.01).abs() < 1e-9);
    }

    #[test]
    fn numbers_that_do_not_go_together_are_refused() {
        for (from, to) in [
            ("\"llama\"", "\"mamba\""),
            ("\"num_attention_heads\":4", "\"num_attention_heads\":0"),
            ("\"num_key_value_heads\":2", "\"num_key_value_heads\":3"),
            ("\"vocab_size\":100", "\"vocab_size\":99999999999"),
            ("\"eos_token_id\":[0,3]", "\"eos_token_id\":100"),
            ("\"rms_norm_eps\":1e-5", "\"rms_norm_eps\":-1"),
            (
                "\"rms_norm_eps\":1e-5",
                "\"rms_norm_eps\":1e-5,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}",
            ),
        ] {
            let config = CONFIG.replace(from, to);
            assert_ne!(config, CONFIG);
            assert!(Shape::from_config(config.as_bytes()).is_err(), "{to}");
        }
    }

    #[test]
    fn slow_planes_are_stretched_and_fast_ones_are_not() {
        let scaling = r#""rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
            "original_max_position_embeddings":8192},"#;
        let config = CONFIG.replace("\"rms_norm_eps\"", &format!("{scaling}\"rms_norm_eps\""));
        let config = config.replace(
            "\"rms_norm_eps\":1e-5",
            "\"rms_norm_eps\":1e-5,\"rope_theta\":500000",
        );
        let stretched = Shape::from_config(config.as_bytes()).unwrap().rope.frequencies;
        let plain = frequencies(500_000.0, 16);
        assert_eq!(stretched[0], plain[0] as f32);
        assert!((f64::from(stretched[7]) - plain[7] / 8.0).abs() < 1e-9);
    }
}
