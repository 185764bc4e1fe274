//! The part of a request to a reference that states how the answer's tokens were chosen. Pure, over bytes of strangers.

use muster_audit::{SamplerEngine, UnusableReason};
use muster_response_proof::{ResponseProof, answer_seed};
use serde_json::{Map, Value};

use crate::reference::scoring_engine::{SamplerSettings, Sampling};

/// The parameters of a request that decide its answer's tokens, beside prompt and seed.
const SAMPLING: [&str; 7] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
];
/// The fields of a request that leave another engine's choices as they are, or decide them in a way that a reference
/// knows. An answer to a request with any other field is not scored: it may have been sampled in some other way.
const UNDERSTOOD: [&str; 15] = [
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stream",
    "stream_options",
    "stop",
    "n",
    "user",
    "logprobs",
    "top_logprobs",
    "return_token_ids",
    "metadata",
];

/// How an answer's tokens were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SamplerFields {
    /// Fields of the request to a reference that stand beside the answer.
    pub(crate) beside: Map<String, Value>,
    /// The parameters as the engine took them: those of the request, and its own where the request leaves them out.
    pub(crate) parameters: Map<String, Value>,
    /// The seed that the request names, where it counts.
    pub(crate) seed: Option<Value>,
    /// Whether nobody knows the seed, so that there are no margins.
    pub(crate) is_unseeded: bool,
}

/// The fields about the answer to this request.
///
/// # Errors
/// The engine chose in a way that no reference knows.
pub(crate) fn sampler_fields(
    sampling: &Sampling,
    proof: &ResponseProof,
    asked: &Map<String, Value>,
) -> Result<SamplerFields, UnusableReason> {
    match sampling {
        Sampling::Muster => Ok(of_muster(proof, asked)),
        Sampling::Engine(sampler) => of_engine(sampler, asked),
        Sampling::Unknown => of_unknown(asked),
    }
}

fn named(asked: &Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let given = names.iter().filter_map(|name| Some((*name, asked.get(*name)?)));
    given
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect()
}

fn of_muster(proof: &ResponseProof, asked: &Map<String, Value>) -> SamplerFields {
    let seed = named(asked, &["seed"]).remove("seed");
    // The 32 bytes that the seal sets otherwise. An engine refuses a request that has both.
    let mut beside = named(asked, &["muster_seed"]);
    if seed.is_none()
        && beside.is_empty()
        && let Some(of_seal) = seed_of_seal(proof)
    {
        beside.insert("muster_seed".to_owned(), of_seal.into());
    }
    SamplerFields {
        beside,
        parameters: named(asked, &SAMPLING),
        seed,
        is_unseeded: false,
    }
}

/// The seed that the sealing proxy set, 64 hex digits; `None` for an answer without the gateway's nonce.
fn seed_of_seal(proof: &ResponseProof) -> Option<String> {
    let gateway = proof.gateway_nonce.as_ref()?;
    let seed = answer_seed(proof.client_nonce.as_ref(), &proof.input, gateway);
    Some(hex::encode(seed))
}

/// The fields about an answer of an engine that draws by the seed of the request.
///
/// # Errors
/// The engine chose in a way that no reference knows.
pub(crate) fn of_engine(
    sampler: &SamplerSettings,
    asked: &Map<String, Value>,
) -> Result<SamplerFields, UnusableReason> {
    let given = understood_parameters(asked)?;
    let looks_at_prompt = ["presence_penalty", "frequency_penalty"].iter().any(|name| {
        given
            .get(*name)
            .and_then(Value::as_f64)
            .is_some_and(|penalty| penalty != 0.0)
    });
    if sampler.engine == SamplerEngine::LlamaCpp && looks_at_prompt {
        return Err(UnusableReason::ReferenceRefused);
    }
    let mut parameters: Map<String, Value> = sampler.defaults().into_iter().collect();
    let seed = sampler.engine.seed_in(asked);
    if seed.is_none() && !is_as_calibrated(&given, &parameters) {
        return Err(UnusableReason::NoSeed);
    }
    parameters.extend(given);
    let mut beside = Map::new();
    beside.insert("sampler".to_owned(), sampler.engine.name().into());
    beside.insert("sampler_version".to_owned(), sampler.version.as_str().into());
    Ok(SamplerFields {
        beside,
        parameters,
        is_unseeded: seed.is_none(),
        seed: seed.map(Value::from),
    })
}

fn of_unknown(asked: &Map<String, Value>) -> Result<SamplerFields, UnusableReason> {
    let given = understood_parameters(asked)?;
    if !is_as_calibrated(&given, &Map::new()) {
        return Err(UnusableReason::NoSeed);
    }
    let mut beside = Map::new();
    beside.insert("sampler".to_owned(), "unknown".into());
    Ok(SamplerFields {
        beside,
        parameters: Map::new(),
        seed: None,
        is_unseeded: true,
    })
}

/// The parameters of a request all of whose fields are understood.
fn understood_parameters(asked: &Map<String, Value>) -> Result<Map<String, Value>, UnusableReason> {
    let is_understood = |(name, value): (&String, &Value)| {
        value.is_null() || UNDERSTOOD.contains(&name.as_str()) || SAMPLING.contains(&name.as_str())
    };
    if asked.iter().all(is_understood) {
        Ok(named(asked, &SAMPLING))
    } else {
        Err(UnusableReason::ReferenceRefused)
    }
}

/// Whether probabilities alone prove something about an answer with these parameters: they are the engine's own, or the
/// temperature is lower, which makes answers look better than the calibration's.
fn is_as_calibrated(given: &Map<String, Value>, own: &Map<String, Value>) -> bool {
    given.iter().all(|(name, value)| {
        let usual = own.get(name).and_then(Value::as_f64);
        match (name.as_str(), value.as_f64(), usual) {
            ("temperature", Some(given), Some(usual)) => given <= usual,
            (_, Some(given), Some(usual)) => given.to_bits() == usual.to_bits(),
            (_, _, _) => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use muster_audit::Margin;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::reference::score_request::read_scores;
    use crate::testing::proof;

    fn llama_cpp() -> Sampling {
        Sampling::Engine(SamplerSettings {
            engine: SamplerEngine::LlamaCpp,
            version: "b11549".to_owned(),
            defaults: None,
        })
    }

    fn fields(sampling: &Sampling, request: Value) -> Result<SamplerFields, UnusableReason> {
        let Value::Object(asked) = request else {
            panic!("an object")
        };
        sampler_fields(sampling, &proof(0), &asked)
    }

    #[test]
    fn llama_cpps_own_parameters_stand_where_a_request_leaves_them_out() {
        let found = fields(
            &llama_cpp(),
            json!({"messages": [], "seed": 7, "temperature": 0.3, "stream": true}),
        );
        let found = found.unwrap();
        assert_eq!(
            Value::Object(found.parameters),
            json!({"temperature": 0.3, "top_k": 40, "top_p": 0.95, "min_p": 0.05})
        );
        assert_eq!(
            Value::Object(found.beside),
            json!({"sampler": "llama.cpp", "sampler_version": "b11549"}),
            "the seal's seed is not that engine's"
        );
        assert_eq!((found.seed, found.is_unseeded), (Some(json!(7)), false));
    }

    #[test]
    fn vllm_has_no_parameters_of_its_own_but_those_of_the_configuration() {
        let with = |defaults: Option<Value>| {
            let defaults = defaults.map(|given| serde_json::from_value(given).unwrap());
            let sampling = Sampling::Engine(SamplerSettings {
                engine: SamplerEngine::Vllm,
                version: "2026-11".to_owned(),
                defaults,
            });
            Value::Object(fields(&sampling, json!({"seed": -5})).unwrap().parameters)
        };
        assert_eq!(with(None), json!({}));
        assert_eq!(
            with(Some(json!({"temperature": 0.6, "top_k": 20}))),
            json!({"temperature": 0.6, "top_k": 20})
        );
    }

    #[test]
    fn a_seed_for_which_the_engine_draws_one_is_none() {
        let is_unseeded = |engine, seed: Value| {
            let sampling = Sampling::Engine(SamplerSettings {
                engine,
                version: "v".to_owned(),
                defaults: None,
            });
            fields(&sampling, json!({"seed": seed})).unwrap().is_unseeded
        };
        for seed in [
            json!(null),
            json!(-1),
            json!(4_294_967_295_u32),
            json!("7"),
            json!(7.5),
        ] {
            assert!(is_unseeded(SamplerEngine::LlamaCpp, seed.clone()), "{seed}");
        }
        assert!(!is_unseeded(SamplerEngine::LlamaCpp, json!(4_294_967_294_u32)));
        assert!(is_unseeded(SamplerEngine::Vllm, json!(-1)));
        assert!(!is_unseeded(SamplerEngine::Vllm, json!(1_u64 << 40)));
    }

    #[test]
    fn an_answer_without_a_seed_is_scored_only_as_its_calibration_was_made() {
        let reason = |request| fields(&llama_cpp(), request).map(|found| found.is_unseeded);
        assert_eq!(reason(json!({"messages": []})), Ok(true));
        assert_eq!(reason(json!({"temperature": 0.2, "top_k": 40})), Ok(true));
        for other in [
            json!({"temperature": 0.9}),
            json!({"top_p": 0.5}),
            json!({"logit_bias": {"0": 1}}),
            json!({"temperature": "hot"}),
        ] {
            assert_eq!(reason(other.clone()), Err(UnusableReason::NoSeed), "{other}");
        }
        let unknown = |request| fields(&Sampling::Unknown, request).map(|found| found.is_unseeded);
        assert_eq!(
            unknown(json!({"seed": 7})),
            Ok(true),
            "nobody knows how the seed is used"
        );
        assert_eq!(unknown(json!({"temperature": 0.2})), Err(UnusableReason::NoSeed));
    }

    #[test]
    fn an_answer_that_was_sampled_in_another_way_is_not_scored() {
        for other in [
            json!({"seed": 7, "mirostat": 2}),
            json!({"seed": 7, "samplers": ["top_k"]}),
            json!({"seed": 7, "grammar": "root ::= \"a\""}),
            json!({"seed": 7, "response_format": {"type": "json_object"}}),
            json!({"seed": 7, "presence_penalty": 0.5}),
        ] {
            let reason = fields(&llama_cpp(), other.clone()).unwrap_err();
            assert_eq!(reason, UnusableReason::ReferenceRefused, "{other}");
        }
        assert!(
            fields(
                &llama_cpp(),
                json!({"seed": 7, "grammar": null, "presence_penalty": 0})
            )
            .is_ok()
        );
    }

    #[test]
    fn without_a_seed_the_number_of_a_token_is_its_surprise() {
        let reply = r#"{"tokens":[{"entropy":1.5,"logprob":-2.0},{"entropy":1.5,"logprob":-0.25}]}"#;
        let scores = read_scores(reply.as_bytes(), true).unwrap();
        let margins: Vec<Margin> = scores.iter().map(|score| score.margin).collect();
        assert_eq!(margins, [Margin::Micronats(500_000), Margin::Micronats(0)]);
        for broken in [
            r#"{"tokens":[{"entropy":1.0}]}"#,
            r#"{"tokens":[{"entropy":1.0,"logprob":-1.0,"margin":0.0}]}"#,
        ] {
            assert_eq!(
                read_scores(broken.as_bytes(), true),
                Err(UnusableReason::ReferenceRefused),
                "{broken}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_request_of_a_stranger_ends_the_audit(text in "[ -~]{0,40}", number in any::<f64>(), seed in any::<i64>()) {
            let request = json!({"seed": seed, "temperature": number, "top_k": text, "logit_bias": text});
            for sampling in [Sampling::Muster, llama_cpp(), Sampling::Unknown] {
                let _ = fields(&sampling, request.clone());
            }
        }
    }
}
