//! The proof of a model's answer: what was signed, by whom, and whether it holds. A fragment of the chat's page.

use maud::html;

/// The verdict about a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownProof {
    /// The defect that was found; `None` if everything holds.
    pub defect: Option<String>,
    /// The signed statements, as names and values.
    pub statements: Vec<(String, String)>,
    /// The digest of the request that was signed, in hex, if the request's bytes were hashed as they are.
    pub input: Option<String>,
    /// All that was checked, as JSON, for the module that checks it again in the page.
    pub signed: String,
}

/// The proof as HTML, which the script puts below the answer.
pub fn render(proof: &ShownProof) -> String {
    let fragment = html! {
        details.proof data-input=[proof.input.as_deref()] data-signed=(proof.signed) {
            summary {
                @match &proof.defect {
                    None => span.good { "Proven" },
                    Some(_) => span.bad { "Not proven" },
                }
            }
            @if let Some(defect) = &proof.defect { p { (defect) } }
            dl.facts {
                @for (name, value) in &proof.statements { div { dt { (name) } dd.mono.break { (value) } } }
            }
            p.help {
                span data-checked-by {
                    "Checked by the facilitator\u{2019}s server, not in this page: the signatures of the miner and of the session, and "
                    "that they bind this answer."
                }
                " " span data-sent {}
                " To check it without trusting the server: " code { "muster chat --save" } " and "
                code { "muster proof verify" } "."
            }
        }
    };
    fragment.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_says_that_the_server_has_checked_it_and_not_the_page() {
        let mut proof = ShownProof {
            defect: None,
            statements: vec![("Model".to_owned(), "<b>tiny</b>".to_owned())],
            input: Some("ab".to_owned()),
            signed: "{\"a\":\"<b>\"}".to_owned(),
        };
        let good = render(&proof);
        assert!(
            good.contains("Checked by the facilitator\u{2019}s server, not in this page"),
            "{good}"
        );
        assert!(
            good.contains("Proven")
                && good.contains("&lt;b&gt;tiny")
                && good.contains("{&quot;a&quot;:&quot;&lt;b&gt;&quot;}"),
            "{good}"
        );
        proof.defect = Some("the signature does not hold".to_owned());
        let bad = render(&proof);
        assert!(
            bad.contains("Not proven") && bad.contains("the signature does not hold"),
            "{bad}"
        );
        assert!(
            bad.contains("Checked by the facilitator\u{2019}s server"),
            "{bad}"
        );
    }
}
