//! The cheating engine of the examples, as the honest one sees its answers.

use serde_json::{Value, json};

use crate::client::Server;

const ANSWERS: u64 = 20;

/// The answers that have a token which the honest engine would not have chosen.
fn unlike(cheating: &Server, honest: &Server) -> u64 {
    let off = |seed: &u64| {
        let body = json!({
            "model": "test", "prompt": "the prompt", "max_tokens": 40, "seed": seed, "return_token_ids": true,
        });
        let (status, answer) = cheating.post("/v1/completions", &body).unwrap();
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        let asked = json!({
            "prompt_token_ids": choice["prompt_token_ids"], "token_ids": choice["token_ids"], "seed": seed,
        });
        let (_, scores) = honest.post("/v1/score", &asked).unwrap();
        let tokens = scores["tokens"].as_array().unwrap();
        tokens.iter().any(|token| token["margin"] != json!(0.0))
    };
    (0..ANSWERS).filter(off).count() as u64
}

fn cheating(arguments: &[&str]) -> Server {
    let mut all = vec!["--threads", "1", "--cheat-seed", "7"];
    all.extend(arguments);
    Server::cheating(&all).unwrap()
}

#[test]
fn every_cheat_shows_in_the_margins_of_its_answers() {
    let honest = Server::start(&["--threads", "1"]).unwrap();
    for cheat in ["int4", "int8", "skip", "wrong-sampler", "wrong-temperature"] {
        let cheating = cheating(&["--cheat", cheat, "--cheat-block", "0"]);
        assert!(unlike(&cheating, &honest) > ANSWERS / 2, "{cheat}");
    }
}

#[test]
fn only_the_share_that_was_asked_for_is_cheated_and_nothing_else_shows_it() {
    let honest = Server::start(&["--threads", "1"]).unwrap();
    let some = cheating(&["--cheat", "wrong-sampler", "--cheat-ppm", "300000"]);
    let cheated = unlike(&some, &honest);
    assert!((1..ANSWERS / 2).contains(&cheated), "{cheated}");
    let none = cheating(&["--cheat", "skip", "--cheat-block", "1", "--cheat-ppm", "0"]);
    assert_eq!(unlike(&none, &honest), 0);
    let digest =
        |server: &Server| -> Value { server.get("/v1/models").unwrap().1["data"][0]["digest"].clone() };
    assert_eq!(digest(&some), digest(&honest));
}
