//! The verdicts of all validators as `muster audit ls` and `muster audit show` print them: those that count, others'
//! bundles with their states, and validators' tests of their own pipelines.

use std::collections::BTreeMap;

use muster_terminal::print;
use serde::{Deserialize, Serialize};

/// `GET /v0/audits`, as far as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShownVerdicts {
    /// The verdicts that count, or did.
    pub(crate) audits: Vec<ShownVerdict>,
    /// Why convictions have ended; none of a validator of an earlier release.
    #[serde(default)]
    pub(crate) ended: Vec<EndedVerdict>,
    /// Others' bundles; none of a validator of an earlier release.
    #[serde(default)]
    pub(crate) offers: Vec<ShownOffer>,
    /// The newest self-tests.
    #[serde(default)]
    pub(crate) self_tests: Vec<ShownSelfTest>,
}

/// A verdict that counts, or did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShownVerdict {
    pub(crate) digest: String,
    pub(crate) coldkey: String,
    pub(crate) model: String,
    pub(crate) verdict: String,
    pub(crate) adopted_at: String,
    /// `own`, `operator`, `rescored`, `endorsed`, `withdrawn` or `earlier`.
    #[serde(default = "earlier")]
    pub(crate) origin: String,
    #[serde(default)]
    pub(crate) author: Option<String>,
}

/// The end of a conviction among the verdicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndedVerdict {
    pub(crate) digest: String,
    pub(crate) reason: String,
}

fn earlier() -> String {
    "earlier".to_owned()
}

/// Another validator's bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShownOffer {
    pub(crate) digest: String,
    pub(crate) author: String,
    pub(crate) says: Option<OfferedWords>,
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) seen_at: String,
    pub(crate) endorsers: Vec<String>,
}

/// The verdict of a bundle and its subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedWords {
    pub(crate) coldkey: String,
    pub(crate) model: String,
    pub(crate) verdict: String,
}

/// A validator's newest test of its own pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShownSelfTest {
    pub(crate) validator: String,
    /// `missing`, `out_of_date`, `not_convicted` or `convicted`.
    pub(crate) standing: String,
    pub(crate) kind: Option<String>,
    pub(crate) tested_at: Option<String>,
    pub(crate) verdict: Option<String>,
}

impl ShownVerdict {
    /// How the verdict came to count, as text.
    fn describe(&self, ended: &[EndedVerdict]) -> String {
        let origin = match self.origin.as_str() {
            "own" => "own",
            "operator" => "adopted by the operator",
            "rescored" => "adopted: the own reference agrees",
            "endorsed" => "adopted: two further validators signed",
            "withdrawn" => "adopted: its author takes its accusation back",
            "earlier" => "adopted under an earlier release",
            other => other,
        };
        match ended.iter().find(|end| end.digest == self.digest) {
            Some(end) => format!("{origin}; ended: {}", end.reason),
            None => origin.to_owned(),
        }
    }
}

impl ShownOffer {
    /// The state as text, with its reason.
    fn describe(&self) -> String {
        let state = self.state.replace('_', " ");
        match &self.reason {
            Some(reason) => format!("{state}: {reason}"),
            None => state,
        }
    }
}

impl ShownSelfTest {
    /// The worth of the test, as text.
    fn describe(&self) -> String {
        let when = self.tested_at.as_deref().unwrap_or("-");
        let kind = self.kind.as_deref().unwrap_or("a cheat");
        let verdict = self.verdict.as_deref().unwrap_or("-");
        match self.standing.as_str() {
            "missing" => "shows no self-test".to_owned(),
            "convicted" => format!("convicted {kind} ({when})"),
            "not_convicted" => format!("did not convict {kind}: {verdict} ({when})"),
            "out_of_date" => format!("its newest self-test is out of date ({when})"),
            other => other.to_owned(),
        }
    }
}

impl ShownVerdicts {
    /// One row for each bundle: when, author, coldkey, model, verdict, state, digest. Adopted offers stand among the
    /// verdicts.
    fn rows(&self) -> Vec<Vec<String>> {
        let dash = || "-".to_owned();
        let verdicts = self.audits.iter().map(|one| {
            vec![
                one.adopted_at.clone(),
                one.author.clone().unwrap_or_else(dash),
                one.coldkey.clone(),
                one.model.clone(),
                one.verdict.clone(),
                one.describe(&self.ended),
                one.digest.clone(),
            ]
        });
        let waiting = self.offers.iter().filter(|offer| offer.state != "adopted");
        let offers = waiting.map(|offer| {
            let says = offer.says.as_ref();
            let said = |of: fn(&OfferedWords) -> &String| says.map_or_else(dash, |says| of(says).clone());
            vec![
                offer.seen_at.clone(),
                offer.author.clone(),
                said(|says| &says.coldkey),
                said(|says| &says.model),
                said(|says| &says.verdict),
                offer.describe(),
                offer.digest.clone(),
            ]
        });
        verdicts.chain(offers).collect()
    }

    /// Prints the bundles and the self-tests as tables; nothing where there is none.
    pub(crate) fn print(&self) {
        let rows = self.rows();
        if !rows.is_empty() {
            print::line(format_args!("\nbundles"));
            print::table(
                &["seen", "author", "coldkey", "model", "verdict", "state", "bundle"],
                rows.into_iter(),
            );
        }
        if !self.self_tests.is_empty() {
            print::line(format_args!("\nself-tests"));
            let rows = self.self_tests.iter();
            let rows = rows.map(|test| vec![test.validator.clone(), test.describe()]);
            print::table(&["validator", "newest self-test"], rows);
        }
    }

    /// The part of it about one bundle, named by its digest or the digest's first digits.
    pub(crate) fn about(&self, wanted: &str) -> Self {
        let is_meant = |digest: &str| {
            let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
            digest == wanted || (wanted.len() >= 4 && hex.starts_with(wanted))
        };
        let audits: Vec<_> = self
            .audits
            .iter()
            .filter(|one| is_meant(&one.digest))
            .cloned()
            .collect();
        let offers: Vec<_> = self
            .offers
            .iter()
            .filter(|one| is_meant(&one.digest))
            .cloned()
            .collect();
        let authors = audits.iter().filter_map(|one| one.author.clone());
        let authors: Vec<String> = authors
            .chain(offers.iter().map(|one| one.author.clone()))
            .collect();
        let tests = self.self_tests.iter();
        Self {
            self_tests: tests
                .filter(|test| authors.contains(&test.validator))
                .cloned()
                .collect(),
            ended: self
                .ended
                .iter()
                .filter(|end| is_meant(&end.digest))
                .cloned()
                .collect(),
            audits,
            offers,
        }
    }

    /// Prints everything about the bundles in it, a fact in a line.
    pub(crate) fn print_details(&self) {
        for line in self.detail_lines() {
            print::line(format_args!("{line}"));
        }
    }

    fn detail_lines(&self) -> Vec<String> {
        let mut facts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for one in &self.audits {
            let about = format!("{} about {} and {}", one.verdict, one.coldkey, one.model);
            let of = facts.entry(&one.digest).or_default();
            of.push(format!("verdict: {about}"));
            of.extend(one.author.iter().map(|author| format!("made by {author}")));
            of.push(format!("{} at {}", one.describe(&self.ended), one.adopted_at));
        }
        for offer in &self.offers {
            let of = facts.entry(&offer.digest).or_default();
            of.push(format!("shown by {} since {}", offer.author, offer.seen_at));
            of.push(offer.describe());
            of.extend(offer.endorsers.iter().map(|signer| format!("signed by {signer}")));
        }
        let mut lines = Vec::new();
        for (digest, facts) in facts {
            lines.push(format!("bundle {digest}"));
            lines.extend(facts.into_iter().map(|fact| format!("  {fact}")));
        }
        let tests = self.self_tests.iter();
        lines.extend(tests.map(|test| format!("{}: {}", test.validator, test.describe())));
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown() -> ShownVerdicts {
        let text = json!({
            "validator": "5me",
            "audits": [
                {"digest": "sha256:aaaa11", "coldkey": "5cold", "miners": [], "model": "tiny", "verdict": "convicted",
                 "quality_per_mille": 0, "adopted_at": "noon", "origin": "rescored", "author": "5peer", "through_bucket": 4},
            ],
            "offers": [
                {"digest": "sha256:aaaa11", "author": "5peer", "says": null, "bytes": 9, "state": "adopted",
                 "reason": "5 pairs were scored again", "seen_at": "eleven", "seen_block": 1, "decided_at": "noon", "endorsers": ["5me"]},
                {"digest": "sha256:bbbb22", "author": "5other", "says": {"coldkey": "5cold", "miners": [], "model": "tiny",
                 "verdict": "convicted", "quality_per_mille": 0, "through_bucket": 4}, "bytes": 9,
                 "state": "not_adopted_in_time", "reason": "its author shows no self-test", "seen_at": "ten",
                 "seen_block": 1, "decided_at": "noon", "endorsers": []},
            ],
            "self_tests": [
                {"validator": "5peer", "standing": "convicted", "kind": "int4", "tested_at": "monday", "verdict": "convicted", "bundle": null},
                {"validator": "5other", "standing": "missing", "kind": null, "tested_at": null, "verdict": null, "bundle": null},
            ],
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_table_tells_how_each_bundle_was_adopted_or_why_it_was_not() {
        let rows = shown().rows();
        assert_eq!(rows.len(), 2, "an adopted offer is one row: {rows:?}");
        assert_eq!(rows[0][5], "adopted: the own reference agrees");
        assert_eq!(rows[1][5], "not adopted in time: its author shows no self-test");
    }

    #[test]
    fn a_conviction_that_has_ended_is_shown_with_the_reason() {
        let mut shown = shown();
        shown.ended = vec![EndedVerdict {
            digest: "sha256:aaaa11".to_owned(),
            reason: "thirty days have passed".to_owned(),
        }];
        let expected = "adopted: the own reference agrees; ended: thirty days have passed";
        assert_eq!(shown.rows()[0][5], expected);
        assert!(shown.about("aaaa").detail_lines().join("\n").contains(expected));
    }

    #[test]
    fn one_bundle_is_shown_with_who_signed_and_the_self_test_of_its_author() {
        let lines = shown().about("aaaa").detail_lines();
        let text = lines.join("\n");
        for part in [
            "bundle sha256:aaaa11",
            "made by 5peer",
            "signed by 5me",
            "5 pairs",
            "convicted int4",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("5other"), "{text}");
        assert_eq!(shown().about("cccc"), ShownVerdicts::default());
        assert_eq!(
            shown().about("aa"),
            ShownVerdicts::default(),
            "two digits name nothing"
        );
    }

    #[test]
    fn a_validator_of_an_earlier_release_shows_its_verdicts() {
        let text = json!({ "validator": "5me", "audits": [
            {"digest": "sha256:aa", "coldkey": "5c", "model": "tiny", "verdict": "convicted", "adopted_at": "noon"}] });
        let shown: ShownVerdicts = serde_json::from_value(text).unwrap();
        assert_eq!(shown.rows()[0][5], "adopted under an earlier release");
    }
}
