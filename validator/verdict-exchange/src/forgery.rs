//! Bundles that a dishonest author makes of an honest one, for the self-test: an adopter has to refuse each of them for
//! a reason of its own. Pure.
//!
//! The bundle is that of a self-test, whose cheat is real, so the adopter has to adopt it as it is. Scores of the
//! bundle take the place of the adopter's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use muster_audit::{
    AnswerFinding, AuditBundle, AuditOutcome, Calibration, LinkState, Margin, Origin, TokenScore,
};
use muster_protocol::Digest;
use muster_response_proof::{BucketHeader, BucketNumber, Envelope, ResponseProof};

use crate::own_judgement::choose_answers;

/// Answers to own prompts that a forger leaves as they are: too few to convict.
const LEFT: usize = 3;
/// The most tokens of an answer that are forged.
const MOST_FORGED: usize = 8;
/// The margin that a forger states of a token that the reference has chosen itself, in micronats.
const FORGED_MARGIN: u32 = 400_000;

/// A way to forge a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forgery {
    /// Of each honest answer as many tokens are stated as others than the reference's choice as convict by statements.
    Tokens,
    /// The words of all but a few answers stay closed.
    ClosedWords,
    /// All but a few own prompts are shown as not answered.
    SkippedPositions,
    /// An answer of one session stands in the place of another one's.
    AskedTwice,
    /// The headers were signed after their draw blocks.
    LateHeader,
}

impl Forgery {
    /// Every way once.
    pub const ALL: [Self; 5] = [
        Self::Tokens,
        Self::ClosedWords,
        Self::SkippedPositions,
        Self::AskedTwice,
        Self::LateHeader,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "forged tokens in each answer",
            Self::ClosedWords => "closed words",
            Self::SkippedPositions => "own prompts that were not answered",
            Self::AskedTwice => "an answer in the place of another session's",
            Self::LateHeader => "headers after their draw blocks",
        }
    }
}

impl fmt::Display for Forgery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The judgement of an adopter about a bundle and those that were forged of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgeryTrial {
    /// Why it refuses the bundle as it is; `None` if it adopts it, as it should.
    pub unforged: Option<String>,
    /// Of each forgery why the adopter refuses it; `None` if it adopts it, which it never should. A forgery is left out
    /// where the bundle gives nothing to forge.
    pub refusals: BTreeMap<Forgery, Option<String>>,
}

impl ForgeryTrial {
    /// Why adopters cannot be relied on; `None` if they adopt the bundle as it is and no forged one.
    pub fn defect(&self) -> Option<String> {
        if let Some(why) = &self.unforged {
            return Some(format!(
                "an adopter with the same scores refuses the bundle: {why}"
            ));
        }
        let adopted = self.refusals.iter().find(|(_, refusal)| refusal.is_none());
        adopted.map(|(forgery, _)| format!("an adopter would follow a bundle with {forgery}"))
    }
}

/// Forges a bundle in every way, and has an adopter with its calibration and true scores judge all of them.
pub fn try_forgeries(bundle: &AuditBundle) -> ForgeryTrial {
    let truth = true_scores(bundle);
    let own = &bundle.calibration;
    let refusal = |forged: &AuditBundle, state: LinkState| refusal_of(forged, own, &truth, state);
    let tried = Forgery::ALL.into_iter().filter_map(|forgery| {
        let forged = match forgery {
            Forgery::Tokens => {
                let is_honest = |alone: &AuditBundle| refusal(alone, LinkState::Joined).is_some();
                forge_tokens(bundle, is_honest, |forged| states_convict(forged, own))?
            }
            Forgery::ClosedWords => close_words(bundle),
            Forgery::SkippedPositions => skip_positions(bundle)?,
            Forgery::AskedTwice => ask_twice(bundle)?,
            Forgery::LateHeader => bundle.clone(),
        };
        let state = match forgery {
            Forgery::LateHeader => LinkState::Unseen,
            Forgery::Tokens | Forgery::ClosedWords | Forgery::SkippedPositions | Forgery::AskedTwice => {
                LinkState::Joined
            }
        };
        Some((forgery, refusal(&forged, state)))
    });
    ForgeryTrial {
        unforged: refusal(bundle, LinkState::Joined),
        refusals: tried.collect(),
    }
}

/// Whether an adopter would score answers of a bundle at all: its author's scores convict.
fn states_convict(bundle: &AuditBundle, own: &Calibration) -> bool {
    let miners: BTreeSet<_> = bundle.miners.iter().copied().collect();
    let links = links_of(bundle, LinkState::Joined);
    let chosen = choose_answers(bundle, own, BucketNumber(0), &miners, &links);
    chosen.is_ok_and(|(_, pairs)| !pairs.is_empty())
}

/// All headers of a bundle in this state.
fn links_of(bundle: &AuditBundle, state: LinkState) -> BTreeMap<Digest, LinkState> {
    let headers = bundle.commitments.iter();
    let links = headers.filter_map(|one| {
        let envelope = Envelope::<BucketHeader>::from_text(&one.header).ok()?;
        Some((envelope.digest(), state))
    });
    links.collect()
}

/// Why an adopter with these scores refuses a bundle; `None` if it adopts it. `state` is that of all of its headers.
fn refusal_of(
    bundle: &AuditBundle,
    own: &Calibration,
    truth: &BTreeMap<Digest, AnswerFinding>,
    state: LinkState,
) -> Option<String> {
    let miners: BTreeSet<_> = bundle.miners.iter().copied().collect();
    let chosen = choose_answers(bundle, own, BucketNumber(0), &miners, &links_of(bundle, state));
    let (test, pairs) = match chosen {
        Ok(chosen) => chosen,
        Err(why) => return Some(why),
    };
    if pairs.is_empty() {
        return Some(match state {
            LinkState::Unseen => "its headers were not shown before their draw blocks".to_owned(),
            LinkState::Joined | LinkState::Apart => {
                format!("not even its author's scores convict: {}", test.tally())
            }
        });
    }
    let scored = pairs
        .iter()
        .filter_map(|pair| Some((pair.digest, truth.get(&pair.digest)?.clone())));
    let judged = test.judge(&scored.collect());
    (!judged.convicts).then(|| format!("the own scores do not bear it out: {judged}"))
}

/// The findings of the bundle's first reference, by the digests of the answers' proofs.
fn true_scores(bundle: &AuditBundle) -> BTreeMap<Digest, AnswerFinding> {
    let answers = bundle.sessions.iter().flat_map(|session| &session.answers);
    let found = answers.filter_map(|answer| {
        let proof = Envelope::<ResponseProof>::from_text(&answer.proof).ok()?.digest();
        let finding = match answer.outcome.as_ref()? {
            AuditOutcome::Scored(scores) => AnswerFinding::Tokens(scores.first()?.clone()?),
            AuditOutcome::FalseIds(_) => AnswerFinding::FalseIds,
            AuditOutcome::Unseeded(_) | AuditOutcome::Unusable(_) => return None,
        };
        Some((proof, finding))
    });
    found.collect()
}

/// The session that alone convicts nobody, with as many tokens forged in each answer as convict by statements; `None`
/// without such a session.
fn forge_tokens(
    bundle: &AuditBundle,
    is_honest: impl Fn(&AuditBundle) -> bool,
    convicts: impl Fn(&AuditBundle) -> bool,
) -> Option<AuditBundle> {
    let alone = |session: &muster_audit::SessionEvidence| AuditBundle {
        sessions: vec![session.clone()],
        ..bundle.clone()
    };
    let sessions = bundle
        .sessions
        .iter()
        .filter(|session| session.answers.len() > LEFT);
    let mut forged = sessions.map(alone).find(|alone| is_honest(alone))?;
    for _ in 0..MOST_FORGED {
        let sessions = forged.sessions.iter_mut();
        for answer in sessions.flat_map(|session| &mut session.answers) {
            if let Some(AuditOutcome::Scored(scores)) = &mut answer.outcome {
                scores.iter_mut().flatten().for_each(|tokens| forge_token(tokens));
            }
        }
        if convicts(&forged) {
            return Some(forged);
        }
    }
    None
}

/// States the token at the highest entropy that was the reference's own choice as another one.
fn forge_token(tokens: &mut [TokenScore]) {
    let own = tokens
        .iter_mut()
        .filter(|token| token.margin == Margin::Micronats(0));
    if let Some(token) = own.max_by_key(|token| token.entropy) {
        token.margin = Margin::Micronats(FORGED_MARGIN);
    }
}

fn close_words(bundle: &AuditBundle) -> AuditBundle {
    let mut forged = bundle.clone();
    let answers = forged
        .sessions
        .iter_mut()
        .flat_map(|session| &mut session.answers);
    let own = answers.filter(|answer| matches!(answer.origin, Origin::Canary(_)));
    own.skip(LEFT).for_each(|answer| answer.words = None);
    forged
}

/// Moves the proofs of answers to own prompts among those that are not in the log; `None` if a proof cannot be read.
fn skip_positions(bundle: &AuditBundle) -> Option<AuditBundle> {
    let mut forged = bundle.clone();
    let mut shown = 0;
    for session in &mut forged.sessions {
        let mut others = Vec::new();
        for text in session.others.drain(..) {
            others.push((number_of(&text)?, text));
        }
        let mut answers = Vec::new();
        for answer in session.answers.drain(..) {
            if matches!(answer.origin, Origin::Canary(_)) && shown >= LEFT {
                others.push((number_of(&answer.proof)?, answer.proof));
            } else {
                shown += 1;
                answers.push(answer);
            }
        }
        others.sort();
        session.answers = answers;
        session.others = others.into_iter().map(|(_, text)| text).collect();
        session.unproven.clear();
    }
    forged.sessions.retain(|session| !session.answers.is_empty());
    Some(forged)
}

fn number_of(proof: &str) -> Option<u64> {
    let envelope = Envelope::<ResponseProof>::from_text(proof).ok()?;
    Some(envelope.statement().ok()?.sequence)
}

/// Shows the first answer of the last session as one to the first prompt of the first session, too; `None` with one
/// session.
fn ask_twice(bundle: &AuditBundle) -> Option<AuditBundle> {
    let mut forged = bundle.clone();
    let [first, .., last] = forged.sessions.as_mut_slice() else {
        return None;
    };
    let origin = first.answers.first()?.origin.clone();
    last.answers.first_mut()?.origin = origin;
    Some(forged)
}
