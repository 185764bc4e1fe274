//! `muster audit self-test`: the tests of a validator's own spot checks.

use std::net::SocketAddr;

use clap::Args;
use muster_process::operator_token::OperatorToken;
use muster_terminal::print;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::validator_calls::{OperatorToolError, OrderBody, call, escape};

/// `muster audit self-test`.
#[derive(Debug, Args)]
pub struct SelfTestArguments {
    /// Begin a test with this model once the next 25 blocks of the log are over; without it, list the tests.
    #[arg(long)]
    model: Option<String>,
    /// The number of tests to show.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

impl SelfTestArguments {
    /// Whether the validator is given an order, which needs its operator's token.
    pub const fn is_order(&self) -> bool {
        self.model.is_some()
    }
}

/// A test as the validator lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ShownSelfTest {
    test: String,
    model: String,
    /// `asking`, `asked`, `scoring`, `judged` or `ended`.
    state: String,
    answers: u64,
    /// The answers of them that the cheaper engine gave.
    cheated: u64,
    began_at: String,
    ended_at: Option<String>,
    verdict: Option<String>,
    reason: Option<String>,
    bundle: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    self_tests: Vec<ShownSelfTest>,
}

impl ShownSelfTest {
    /// The state as text.
    fn describe(&self) -> String {
        match (self.state.as_str(), self.verdict.as_deref(), &self.reason) {
            (_, Some("convicted"), _) => "passed: the planted cheat was convicted".to_owned(),
            (_, Some(verdict), _) => format!("FAILED: the planted cheat is {verdict}"),
            (_, None, Some(reason)) => format!("no verdict: {reason}"),
            ("asking", None, None) => "its prompts are asked".to_owned(),
            ("asked", None, None) => "its answers wait for their draw".to_owned(),
            ("scoring", None, None) => "references score its answers".to_owned(),
            (other, None, None) => other.to_owned(),
        }
    }
}

/// Orders a test, or prints the newest ones.
///
/// # Errors
/// No validator answers, or it refuses the order.
pub async fn self_test(
    at: SocketAddr,
    token: Option<&OperatorToken>,
    args: SelfTestArguments,
    is_json: bool,
) -> Result<(), OperatorToolError> {
    if let (Some(model), Some(token)) = (&args.model, token) {
        let path = format!("/v0/audits/self-tests?model={}", escape(model));
        call(at, &path, Some((token, OrderBody::Json(json!({}))))).await?;
        if is_json {
            print::line(format_args!("{:#}", json!({ "model": model })));
        } else {
            print::line(format_args!(
                "a test with {model} begins once the next 25 blocks of the log are over; `muster audit self-test` shows it"
            ));
        }
        return Ok(());
    }
    let body = call(at, &format!("/v0/audits/self-tests?limit={}", args.limit), None).await?;
    let listed: Listed = serde_json::from_value(body).map_err(|_| OperatorToolError::OtherVersion(at))?;
    if is_json {
        print::line(format_args!("{:#}", json!({ "self_tests": listed.self_tests })));
        return Ok(());
    }
    let rows = listed.self_tests.iter().map(|test| {
        vec![
            test.began_at.clone(),
            test.model.clone(),
            format!("{} of {}", test.cheated, test.answers),
            test.describe(),
        ]
    });
    print::table(&["began", "model", "cheated", "result"], rows);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_conviction_passes() {
        let test = |state: &str, verdict: Option<&str>, reason: Option<&str>| ShownSelfTest {
            test: "1".to_owned(),
            model: "tiny".to_owned(),
            state: state.to_owned(),
            answers: 256,
            cheated: 26,
            began_at: "now".to_owned(),
            ended_at: None,
            verdict: verdict.map(str::to_owned),
            reason: reason.map(str::to_owned),
            bundle: None,
        };
        let said = |state, verdict, reason| test(state, verdict, reason).describe();
        assert!(said("judged", Some("convicted"), None).starts_with("passed"));
        assert!(said("judged", Some("suspect"), None).starts_with("FAILED"));
        assert_eq!(said("ended", None, Some("it died")), "no verdict: it died");
        assert_eq!(said("asked", None, None), "its answers wait for their draw");
    }
}
