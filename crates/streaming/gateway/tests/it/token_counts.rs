//! The tokens that are paid, where the model's tokenizer is at hand: those of `images/llm`'s model.

use std::path::Path;

use muster_gateway::token_count::{ModelTokenizer, count_exchange};
use muster_openai::TokenBounds;
use muster_protocol::Digest;
use muster_session_pool::TokenizerFile;
use serde_json::{Value, json};

use crate::rig::World;

const WORDS: usize = 40;

pub(crate) fn tokenizer_file() -> TokenizerFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../images/llm/model/tokenizer.json");
    TokenizerFile {
        sha256: Digest::of(&std::fs::read(&path).unwrap()),
        path,
    }
}

/// A request for [`WORDS`] words whose engine claims `claimed` tokens.
fn request(claimed: u64) -> Value {
    json!({
        "model": "tiny", "max_tokens": WORDS, "max_completion_tokens": 1_000_000, "user": claimed.to_string(),
        "messages": [{"role": "user", "content": "say words"}],
    })
}

/// The tokens of an answer, as the gateway stores and prices them.
async fn used(world: &World, request: &Value) -> (u64, u64) {
    let posted = world.post("/v1/chat/completions").body(request.to_string());
    let answer = posted.send().await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    answer.bytes().await.unwrap();
    let proof = world.proof(&id).await;
    let tokens = |of: &str| proof["usage"][of].as_u64().unwrap();
    assert_eq!(
        proof["cost"].as_u64().unwrap(),
        tokens("input") + 2 * tokens("output")
    );
    (tokens("input"), tokens("output"))
}

#[tokio::test]
async fn a_lying_engine_is_paid_the_tokens_that_the_models_tokenizer_counts() {
    let file = tokenizer_file();
    let world = World::new(|settings| settings.services[0].tokenizer = Some(file.clone())).await;
    let tokenizer = ModelTokenizer::open(&file.path, &file.sha256).unwrap();
    let lie = request(100_000);
    let text = "word ".repeat(WORDS);
    let counted = count_exchange(&tokenizer, lie.to_string().as_bytes(), &[text]).unwrap();
    assert!((10..200).contains(&counted.usage.output), "{counted:?}");
    let most = counted.usage.input + counted.template;
    assert_eq!(used(&world, &lie).await, (most, counted.usage.output));
    assert_eq!(used(&world, &request(7)).await, (7, 7), "a lower report pays");
}

#[tokio::test]
async fn without_a_tokenizer_bytes_bound_the_report() {
    let world = World::new(|_| ()).await;
    let lie = request(100_000);
    let bytes = u64::try_from("word ".len() * WORDS).unwrap();
    let asked = TokenBounds::of(lie.to_string().as_bytes()).input;
    assert_eq!(used(&world, &lie).await, (asked, bytes.div_ceil(3)));
}
