//! The tokens of an answer of which only the text is known.
//!
//! A text has many tokenizations, and the sampler's noise hangs on the place of each token, so scores of another
//! tokenization than the engine's show nothing. The engine that wrote the answer made the sampler's choices: this
//! reference makes them again by the same seed, for as long as they spell the text. Where they do not, the engine chose
//! another token, whose text is the next part of the answer. Of all such tokens the one with the smallest margin is
//! taken, and what follows is not scored: nobody knows where the next token begins. So the scores are never worse than
//! those of the tokens that the engine chose.

use super::BROKEN_LETTER;
use crate::api::{ApiError, Service};
use crate::engine::{Event, Generate, Margin, Score};
use crate::replay::Chooser;
use crate::sampler::{Parameters, Slack};

/// Tokens before the first difference that are looked at again: rounding may have made this reference choose another
/// token there that spells a part of the same text.
const LOOKED_AT_AGAIN: usize = 4;

/// An answer of which the text is known.
pub(super) struct TextAnswer<'a> {
    pub(super) prompt: &'a [u32],
    pub(super) parameters: &'a Parameters,
    pub(super) chooser: &'a Chooser,
    pub(super) text: &'a str,
    /// The most tokens that the answer can have.
    pub(super) max_tokens: usize,
    /// Whether the last token may reach beyond the text, as where a stop sequence was cut off.
    pub(super) is_open: bool,
    /// Whether the model ended the answer itself.
    pub(super) is_ended: bool,
}

/// The tokens that are known.
pub(super) struct Retraced {
    /// The first tokens of the answer.
    pub(super) ids: Vec<u32>,
    /// Whether they are all of the answer's.
    pub(super) is_whole: bool,
}

impl TextAnswer<'_> {
    /// The tokens as far as they are known.
    pub(super) async fn retrace(&self, service: &Service) -> Result<Retraced, ApiError> {
        let known = self.text.find(BROKEN_LETTER);
        let text = self
            .text
            .get(..known.unwrap_or(self.text.len()))
            .unwrap_or_default();
        let reserve = match self.is_open || known.is_some() {
            true => longest_token(service),
            false => 0,
        };
        let ends = &service.shape.ends;
        let mut events = service.engine.generate(Generate {
            prompt: self.prompt.to_vec(),
            parameters: self.parameters.clone(),
            chooser: self.chooser.clone(),
            max_tokens: self.max_tokens,
            likely: None,
        })?;
        let mut places = Vec::new();
        let mut rest = text.as_bytes();
        while rest.len() > reserve || (reserve == 0 && self.is_ended) {
            let id = match events.recv().await {
                Some(Event::Began(_)) => continue,
                Some(Event::Token(token)) => token.id,
                Some(Event::Finished(_)) => break,
                None => return Err(ApiError::failed()),
            };
            let is_end = ends.contains(&id);
            if is_end && rest.is_empty() {
                places.push((id, rest));
                return Ok(whole(&places));
            }
            match rest.strip_prefix(service.tokenizer.bytes(id)) {
                Some(after) if !is_end => {
                    places.push((id, rest));
                    rest = after;
                }
                Some(_) | None => {
                    drop(events);
                    return self.difference(service, places, rest).await;
                }
            }
        }
        let is_whole = reserve == 0 && rest.is_empty() && !self.is_ended;
        Ok(Retraced {
            is_whole,
            ..whole(&places)
        })
    }

    /// The tokens up to the first that this reference did not choose; `places` are the tokens before it, each with the
    /// text from it on.
    async fn difference(
        &self,
        service: &Service,
        places: Vec<(u32, &[u8])>,
        rest: &[u8],
    ) -> Result<Retraced, ApiError> {
        let first = places.len().saturating_sub(LOOKED_AT_AGAIN);
        for (place, (id, from)) in places.iter().enumerate().skip(first) {
            let before = ids(places.get(..place).unwrap_or_default());
            let others = spellings(service, from).filter(|other| other != id);
            for other in others {
                if self.margin(service, &before, other).await? <= self.chooser.rounding() {
                    return Ok(Retraced {
                        ids: before,
                        is_whole: false,
                    });
                }
            }
        }
        let mut known = ids(&places);
        let mut nearest = None;
        let ends = service.shape.ends.iter().copied();
        let candidates: Vec<u32> = match rest.is_empty() {
            true => ends.collect(),
            false => spellings(service, rest).collect(),
        };
        for id in candidates {
            let margin = self.margin(service, &known, id).await?;
            if nearest.is_none_or(|(least, _)| margin < least) {
                nearest = Some((margin, id));
            }
        }
        known.extend(nearest.map(|(_, id)| id));
        Ok(Retraced {
            ids: known,
            is_whole: false,
        })
    }

    /// The margin of a token after others, in Q24; the largest number for a token that the sampler cannot choose.
    async fn margin(&self, service: &Service, before: &[u32], id: u32) -> Result<i64, ApiError> {
        let mut tokens = self.prompt.to_vec();
        tokens.extend(before);
        tokens.push(id);
        let scored = service.engine.score(Score {
            tokens,
            prompt: self.prompt.len(),
            parameters: self.parameters.clone(),
            chooser: Some(self.chooser.clone()),
            slack: Slack::default(),
            likely: 0,
        })?;
        let scores = scored.await.map_err(|_| ApiError::failed())?;
        Ok(match scores.tokens.last().map(|scored| scored.margin) {
            Some(Margin::Known(margin)) => margin,
            Some(Margin::Impossible | Margin::Unknown) | None => i64::MAX,
        })
    }
}

fn ids(places: &[(u32, &[u8])]) -> Vec<u32> {
    places.iter().map(|(id, _)| *id).collect()
}

fn whole(places: &[(u32, &[u8])]) -> Retraced {
    Retraced {
        ids: ids(places),
        is_whole: true,
    }
}

/// The tokens whose text the answer goes on with.
fn spellings<'a>(service: &'a Service, rest: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
    let vocabulary = u32::try_from(service.shape.vocabulary).unwrap_or(u32::MAX);
    (0..vocabulary).filter(|id| {
        let bytes = service.tokenizer.bytes(*id);
        !bytes.is_empty() && rest.starts_with(bytes) && !service.shape.ends.contains(id)
    })
}

/// Bytes of the longest token.
fn longest_token(service: &Service) -> usize {
    let vocabulary = u32::try_from(service.shape.vocabulary).unwrap_or(u32::MAX);
    (0..vocabulary)
        .map(|id| service.tokenizer.bytes(id).len())
        .max()
        .unwrap_or_default()
}
