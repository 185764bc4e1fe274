//! Answers: one JSON document, or a stream of server-sent events. A client that goes cancels what it asked for.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures_util::future::join_all;
use futures_util::stream::{self, Stream, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::request::Plan;
use super::{ApiError, Shared};
use crate::engine::{Event, Finish, Generate, Likely, Token};
use crate::replay::Chooser;
use crate::text::Writer;

/// The facts that all answers to a request share.
struct Context {
    service: Shared,
    id: String,
    created: u64,
    chat: bool,
    likely: bool,
    token_ids: bool,
}

/// One answer in the making.
struct Choice {
    index: usize,
    /// The prompt's ids, until a stream's first event has stated them.
    prompt: Option<Vec<u32>>,
    events: mpsc::Receiver<Event>,
    writer: Writer,
    cached: usize,
    tokens: usize,
    first: bool,
    over: bool,
}

/// A step of an answer.
#[derive(Default)]
struct Piece {
    text: String,
    tokens: Vec<Token>,
    finish: Option<&'static str>,
    failed: bool,
}

pub(super) async fn run(service: Shared, plan: Plan) -> Result<Response, ApiError> {
    let mut id = [0; 12];
    // An id only has to differ; without randomness it is all zeros.
    let _ = getrandom::fill(&mut id);
    let context = Arc::new(Context {
        id: format!(
            "{}-{}",
            if plan.chat { "chatcmpl" } else { "cmpl" },
            hex::encode(id)
        ),
        created: super::serve::unix_seconds(),
        chat: plan.chat,
        likely: plan.likely.is_some(),
        token_ids: plan.token_ids,
        service,
    });
    let choices = begin(&context, &plan)?;
    let prompt_tokens = plan.prompts.iter().map(Vec::len).sum();
    if plan.stream {
        Ok(streamed(context, choices, plan.usage, prompt_tokens))
    } else {
        whole(&context, choices, &plan, prompt_tokens).await
    }
}

fn begin(context: &Context, plan: &Plan) -> Result<Vec<Choice>, ApiError> {
    let mut choices = Vec::new();
    for prompt in &plan.prompts {
        for _ in 0..plan.choices {
            let index = choices.len();
            let room = context.service.shape.context - prompt.len();
            let events = context.service.engine.generate(Generate {
                prompt: prompt.clone(),
                parameters: plan.parameters.clone(),
                chooser: Chooser::Muster(plan.seed.choice(u32::try_from(index).unwrap_or(0))),
                max_tokens: plan.max_tokens.unwrap_or(room).clamp(1, room.max(1)),
                likely: plan.likely,
            })?;
            choices.push(Choice {
                index,
                prompt: (plan.stream && plan.token_ids).then(|| prompt.clone()),
                events,
                writer: Writer::new(plan.stops.clone()),
                cached: 0,
                tokens: 0,
                first: true,
                over: false,
            });
        }
    }
    Ok(choices)
}

impl Choice {
    /// The next step; none when the answer is over.
    async fn next(&mut self, context: &Context) -> Option<Piece> {
        if self.over {
            return None;
        }
        loop {
            let mut piece = Piece::default();
            match self.events.recv().await {
                Some(Event::Began(cached)) => {
                    self.cached = cached;
                    continue;
                }
                Some(Event::Token(token)) => {
                    self.tokens += 1;
                    if !context.service.shape.ends.contains(&token.id) {
                        piece.text = self.writer.push(context.service.tokenizer.bytes(token.id));
                    }
                    piece.tokens.push(token);
                    if self.writer.stopped() {
                        // The engine sees the channel closed and stops, too.
                        self.events.close();
                        self.over = true;
                        piece.finish = Some("stop");
                    }
                }
                Some(Event::Finished(finish)) => {
                    self.over = true;
                    piece.text = self.writer.finish();
                    piece.failed = finish == Finish::Failed;
                    piece.finish = Some(match finish {
                        Finish::End => "stop",
                        Finish::Length => "length",
                        Finish::Failed => "error",
                    });
                }
                None => {
                    self.over = true;
                    piece.failed = true;
                }
            }
            return Some(piece);
        }
    }
}

async fn whole(
    context: &Context,
    choices: Vec<Choice>,
    plan: &Plan,
    prompt_tokens: usize,
) -> Result<Response, ApiError> {
    let answers = join_all(choices.into_iter().map(|mut choice| async move {
        let mut all = Piece::default();
        while let Some(piece) = choice.next(context).await {
            all.text.push_str(&piece.text);
            all.tokens.extend(piece.tokens);
            all.failed |= piece.failed;
            all.finish = piece.finish;
        }
        (choice, all)
    }))
    .await;
    if answers.iter().any(|(_, piece)| piece.failed) {
        return Err(ApiError::failed());
    }
    let (tokens, cached) = answers.iter().fold((0, 0), |(tokens, cached), (choice, _)| {
        (tokens + choice.tokens, cached + choice.cached)
    });
    let documents: Vec<Value> = answers
        .iter()
        .map(|(choice, piece)| {
            let mut document = if context.chat {
                json!({"index": choice.index, "message": {"role": "assistant", "content": piece.text, "refusal": null}})
            } else {
                json!({"index": choice.index, "text": piece.text})
            };
            decorate(context, &mut document, piece);
            if context.token_ids {
                let prompt = plan.prompts.get(choice.index / plan.choices);
                set(&mut document, "prompt_token_ids", json!(prompt));
            }
            document
        })
        .collect();
    let mut body = head(
        context,
        if context.chat {
            "chat.completion"
        } else {
            "text_completion"
        },
    );
    set(&mut body, "choices", Value::Array(documents));
    set(&mut body, "usage", usage(prompt_tokens, tokens, cached));
    Ok(axum::Json(body).into_response())
}

fn streamed(context: Arc<Context>, choices: Vec<Choice>, with_usage: bool, prompt_tokens: usize) -> Response {
    let totals = Arc::new(std::sync::Mutex::new((0, 0)));
    let answers = choices
        .into_iter()
        .map(|choice| pieces(Arc::clone(&context), choice, Arc::clone(&totals)));
    let all = stream::select_all(answers.map(Box::pin));
    let tail = stream::once(async move {
        let mut end = String::new();
        if with_usage {
            let (tokens, cached) = totals.lock().map_or((0, 0), |totals| *totals);
            let mut body = head(&context, kind(&context));
            set(&mut body, "choices", json!([]));
            set(&mut body, "usage", usage(prompt_tokens, tokens, cached));
            end = event(&body);
        }
        end + "data: [DONE]\n\n"
    });
    let body = Body::from_stream(all.chain(tail).map(Ok::<_, Infallible>));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, body).into_response()
}

type Totals = Arc<std::sync::Mutex<(usize, usize)>>;

/// The events of one answer.
fn pieces(context: Arc<Context>, choice: Choice, totals: Totals) -> impl Stream<Item = String> {
    stream::unfold(
        (choice, context, totals),
        |(mut choice, context, totals)| async move {
            let piece = choice.next(&context).await?;
            if choice.over
                && let Ok(mut totals) = totals.lock()
            {
                totals.0 += choice.tokens;
                totals.1 += choice.cached;
            }
            let text = if piece.failed {
                event(
                    &json!({"error": {"message": "the engine failed; its log says why", "type": "server_error", "code": "engine_failed"}}),
                )
            } else {
                event(&chunk(&context, &mut choice, &piece))
            };
            Some((text, (choice, context, totals)))
        },
    )
}

fn chunk(context: &Context, choice: &mut Choice, piece: &Piece) -> Value {
    let mut document = if context.chat {
        let mut delta = json!({"content": piece.text});
        if std::mem::take(&mut choice.first) {
            set(&mut delta, "role", json!("assistant"));
        }
        json!({"index": choice.index, "delta": delta})
    } else {
        json!({"index": choice.index, "text": piece.text})
    };
    decorate(context, &mut document, piece);
    if let Some(prompt) = choice.prompt.take() {
        set(&mut document, "prompt_token_ids", json!(prompt));
    }
    let mut body = head(context, kind(context));
    set(&mut body, "choices", Value::Array(vec![document]));
    body
}

fn kind(context: &Context) -> &'static str {
    if context.chat {
        "chat.completion.chunk"
    } else {
        "text_completion"
    }
}

fn head(context: &Context, object: &str) -> Value {
    let fingerprint: String = context.service.id.chars().take(16).collect();
    json!({
        "id": context.id, "object": object, "created": context.created, "model": context.service.name,
        "system_fingerprint": fingerprint,
    })
}

/// Adds the end and the counts of tokens that both kinds of answers carry.
fn decorate(context: &Context, document: &mut Value, piece: &Piece) {
    set(document, "finish_reason", json!(piece.finish));
    let logprobs = match (context.likely && !piece.tokens.is_empty(), context.chat) {
        (false, _) => Value::Null,
        (true, true) => {
            json!({"content": piece.tokens.iter().map(|token| spelt(context, token)).collect::<Vec<_>>(), "refusal": null})
        }
        (true, false) => legacy(context, &piece.tokens),
    };
    set(document, "logprobs", logprobs);
    if context.token_ids {
        set(
            document,
            "token_ids",
            piece.tokens.iter().map(|token| token.id).collect(),
        );
    }
}

fn spelt(context: &Context, token: &Token) -> Value {
    let entry = |id: u32, logprob: f64| {
        let tokenizer = &context.service.tokenizer;
        json!({"token": tokenizer.name(id), "token_id": id, "logprob": logprob, "bytes": tokenizer.bytes(id)})
    };
    let mut spelt = entry(token.id, token.logprob.unwrap_or_default());
    let likely = token
        .likely
        .iter()
        .map(|likely| entry(likely.id, likely.logprob))
        .collect();
    set(&mut spelt, "top_logprobs", Value::Array(likely));
    spelt
}

/// The older form of the completions endpoint, with the ids beside it.
fn legacy(context: &Context, tokens: &[Token]) -> Value {
    let name = |id: u32| context.service.tokenizer.name(id);
    let likely = |all: &[Likely]| -> Value {
        all.iter()
            .map(|likely| (name(likely.id), json!(likely.logprob)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    json!({
        "tokens": tokens.iter().map(|token| name(token.id)).collect::<Vec<_>>(),
        "token_ids": tokens.iter().map(|token| token.id).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(|token| likely(&token.likely)).collect::<Vec<_>>(),
        "top_token_ids": tokens.iter().map(|token| token.likely.iter().map(|l| l.id).collect::<Vec<_>>()).collect::<Vec<_>>(),
    })
}

fn usage(prompt: usize, completion: usize, cached: usize) -> Value {
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}

fn set(document: &mut Value, key: &str, value: Value) {
    if let Some(object) = document.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

fn event(body: &Value) -> String {
    format!("data: {body}\n\n")
}
