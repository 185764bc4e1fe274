//! A list of own prompts: requests in the forms of users', in an order that is drawn anew for each list.

use serde_json::{Map, Value, json};

use crate::own_prompts::answered_chat::{AnsweredChat, take_chat};
use crate::own_prompts::request_form::{FormField, MessageForm, RequestForm, Role, Spacing, json_text};
use crate::own_prompts::texts::SYSTEMS;
use crate::{Canary, CanaryList, SeededNumbers};

/// The texts that are looked at for one of about the length that the form has.
const TEXTS_COMPARED: usize = 8;
/// The longest answer to a prompt that follows no user's form, in tokens.
const USUAL_TOKENS: u32 = 256;
/// The temperatures of prompts that follow no user's form, in turns: at lower ones a model has less to choose, as in
/// most chats.
const TEMPERATURES: [&str; 3] = ["1.0", "0.7", "0.3"];

/// The number of prompts for each model in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeats(pub usize);

/// The fields without which nobody can score an answer of a model's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SamplerNeeds {
    /// None: the seal names the seed.
    Nothing,
    /// A seed and the ids of the tokens, as of vLLM. `null` stands for the seed in the list, which gets the seed of its
    /// position when it is asked.
    SeedAndIds,
    /// A seed, likewise; the engine states no ids, as llama.cpp.
    Seed,
    /// Nobody knows how the engine draws, so the request leaves all of it to the engine.
    NoParameters,
}

/// A model that own prompts are asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PromptedModel {
    /// Its name in the whitelist.
    pub name: String,
    /// The fields that its engine's answers need.
    pub needs: SamplerNeeds,
    /// The forms in which users ask it; those of no user if it is empty.
    pub forms: Vec<RequestForm>,
    /// Chats that its miners have answered, the newest ones first. Each is gone on with once.
    pub chats: Vec<AnsweredChat>,
}

/// Everything that a list follows from, beside its seed.
#[derive(Clone, Debug)]
pub struct ListPlan<'a> {
    /// The models, each of which is asked in turn.
    pub models: &'a [PromptedModel],
    /// Prompts of which each is used once, the first ones first. They are nobody else's.
    pub fresh: &'a [String],
    /// Prompts that are drawn from once those are used up.
    pub texts: &'a [String],
    /// The longest answer that is asked for, in tokens.
    pub tokens: u32,
    /// Prompts for each model.
    pub repeats: Repeats,
}

/// A list of prompts. `seed` orders it: 32 bytes that nobody else knows, which give every prompt its salt, too.
pub fn make_list(plan: &ListPlan<'_>, seed: &[u8; 32]) -> CanaryList {
    let mut numbers = SeededNumbers::new("muster/own-prompts/2", seed);
    let mut fresh: Vec<&String> = plan.fresh.iter().collect();
    let models = plan.models.iter();
    let mut answered: Vec<Vec<&AnsweredChat>> = models.map(|model| model.chats.iter().collect()).collect();
    let mut canaries = Vec::new();
    let Repeats(rounds) = plan.repeats;
    let mut is_first_with_ids = false;
    for round in 0..rounds {
        // Of every two usual forms one asks for ids, the first or the second.
        let is_first = round % 2 == 0;
        if is_first {
            is_first_with_ids = numbers.below(2) == 0;
        }
        for (model, chats) in plan.models.iter().zip(&mut answered) {
            let form = match model.forms.get(numbers.below(model.forms.len())) {
                Some(form) => form.clone(),
                None => usual_form(round, is_first == is_first_with_ids, plan.tokens, &mut numbers),
            };
            let messages = form.fields.iter().find_map(|field| match field {
                FormField::Messages(messages) => Some(messages),
                FormField::Model | FormField::Prompt(_) | FormField::Kept(_, _) => None,
            });
            let chat = messages.and_then(|messages| take_chat(chats, messages));
            let Some(text) = take_text(plan, &form, chat, &mut fresh, &mut numbers) else {
                continue;
            };
            let words = Words { chat, text: &text };
            let request = write_request(model, &form, words, plan.tokens, &mut numbers);
            let mut salt: [u8; 32] = std::array::from_fn(|_| u8::try_from(numbers.below(256)).unwrap_or(0));
            Canary::set_nonce(&mut salt, form.has_nonce);
            canaries.push(Canary { salt, request });
        }
    }
    CanaryList::new(canaries)
}

/// The text of about the form's length among a few, which nobody has said in the chat.
fn take_text(
    plan: &ListPlan<'_>,
    form: &RequestForm,
    chat: Option<&AnsweredChat>,
    fresh: &mut Vec<&String>,
    numbers: &mut SeededNumbers,
) -> Option<String> {
    let wanted = form.fields.iter().find_map(|field| match field {
        FormField::Messages(messages) => Some(messages.last()?.bytes),
        FormField::Prompt(bytes) => Some(*bytes),
        FormField::Model | FormField::Kept(_, _) => None,
    })?;
    let distance = |text: &str| wanted.abs_diff(u64::try_from(text.len()).unwrap_or(u64::MAX));
    if !fresh.is_empty() {
        let first = fresh.iter().take(TEXTS_COMPARED).enumerate();
        let (place, _) = first.min_by_key(|(_, text)| distance(text))?;
        return Some(fresh.remove(place).clone());
    }
    let candidates: Vec<&String> = (0..TEXTS_COMPARED)
        .filter_map(|_| plan.texts.get(numbers.below(plan.texts.len())))
        .filter(|text| !chat.is_some_and(|chat| chat.has(text)))
        .collect();
    // Of equal ones the first, which was drawn: built-in texts are about as long as one another.
    let nearest = candidates.into_iter().min_by_key(|text| distance(text) / 64)?;
    Some(nearest.clone())
}

/// A form that no user has given: as OpenAI's clients ask, one of several lengths, with and without ids.
fn usual_form(round: usize, asks_for_ids: bool, tokens: u32, numbers: &mut SeededNumbers) -> RequestForm {
    let kept = |name: &str, value: &str| FormField::Kept(name.to_owned(), value.to_owned());
    let message = |role, bytes| MessageForm { role, bytes };
    let mut messages = Vec::new();
    if numbers.below(3) == 0 {
        messages.push(message(Role::System, 28));
    }
    // A quarter goes on with an answered chat, and a third of these does so for the second time.
    let answers = match numbers.below(12) {
        0 => 2,
        1 | 2 => 1,
        _ => 0,
    };
    for _ in 0..answers {
        messages.push(message(Role::User, 20));
        messages.push(message(Role::Assistant, 40));
    }
    messages.push(message(Role::User, 48));
    let eighths = u32::try_from(8 - numbers.below(3)).unwrap_or(8);
    let shortened = (u64::from(tokens.min(USUAL_TOKENS)) * u64::from(eighths) / 8).max(1);
    let temperature = TEMPERATURES
        .get(round % TEMPERATURES.len())
        .copied()
        .unwrap_or("1.0");
    let mut fields = vec![
        FormField::Messages(messages),
        FormField::Model,
        kept("max_tokens", &shortened.to_string()),
        kept("stream", "true"),
        kept("temperature", temperature),
    ];
    if asks_for_ids {
        fields.push(kept("return_token_ids", "true"));
    }
    let turned = numbers.below(3);
    fields.rotate_left(turned);
    RequestForm {
        fields,
        spacing: Spacing::Compact,
        has_nonce: false,
    }
}

/// The words of a request.
#[derive(Clone, Copy)]
struct Words<'a> {
    /// The chat that it goes on with.
    chat: Option<&'a AnsweredChat>,
    text: &'a str,
}

/// The body of a request in this form.
fn write_request(
    model: &PromptedModel,
    form: &RequestForm,
    words: Words<'_>,
    tokens: u32,
    numbers: &mut SeededNumbers,
) -> Vec<u8> {
    let mut asked = Map::new();
    for field in &form.fields {
        match field {
            FormField::Model => drop(asked.insert("model".to_owned(), model.name.as_str().into())),
            FormField::Prompt(_) => drop(asked.insert("prompt".to_owned(), words.text.into())),
            FormField::Messages(messages) => {
                let messages = write_messages(messages, words, numbers);
                asked.insert("messages".to_owned(), Value::Array(messages));
            }
            FormField::Kept(name, value) => {
                if let Some(value) = kept_value(model.needs, name, value, tokens) {
                    asked.insert(name.clone(), value);
                }
            }
        }
    }
    match model.needs {
        SamplerNeeds::SeedAndIds => {
            asked.insert("seed".to_owned(), Value::Null);
            asked.insert("return_token_ids".to_owned(), json!(true));
        }
        SamplerNeeds::Seed => {
            asked.insert("seed".to_owned(), Value::Null);
        }
        SamplerNeeds::Nothing | SamplerNeeds::NoParameters => {}
    }
    json_text(&Value::Object(asked), form.spacing).into_bytes()
}

/// The value of a field in an own prompt; `None` if the engine's answers could not be scored with it.
fn kept_value(needs: SamplerNeeds, name: &str, value: &str, tokens: u32) -> Option<Value> {
    let value: Value = serde_json::from_str(value).ok()?;
    match (needs, name) {
        (_, "max_tokens" | "max_completion_tokens") => {
            let asked = value.as_u64();
            Some(asked.map_or(value, |asked| json!(asked.min(u64::from(tokens)))))
        }
        (_, "stream" | "stream_options" | "n") => Some(value),
        (SamplerNeeds::NoParameters, _) | (SamplerNeeds::Seed | SamplerNeeds::SeedAndIds, "seed") => None,
        (SamplerNeeds::Seed, "return_token_ids" | "presence_penalty" | "frequency_penalty") => None,
        (SamplerNeeds::Nothing | SamplerNeeds::Seed | SamplerNeeds::SeedAndIds, _) => Some(value),
    }
}

/// The turns of an answered chat and the question after them. A first turn has instructions if its form has.
fn write_messages(
    forms: &[MessageForm],
    Words { chat, text }: Words<'_>,
    numbers: &mut SeededNumbers,
) -> Vec<Value> {
    let written = |role: Role, content: &str| json!({ "role": role.name(), "content": content });
    let mut messages: Vec<Value> = match chat {
        Some(chat) => chat
            .messages()
            .map(|(role, content)| written(role, content))
            .collect(),
        None => forms
            .iter()
            .filter(|form| form.role == Role::System)
            .map(|form| written(Role::System, nearest_system(form.bytes, numbers)))
            .collect(),
    };
    messages.push(written(Role::User, text));
    messages
}

/// Instructions of about this length.
fn nearest_system(bytes: u64, numbers: &mut SeededNumbers) -> &'static str {
    let start = numbers.below(SYSTEMS.len());
    let turned = SYSTEMS.iter().cycle().skip(start).take(SYSTEMS.len());
    let distance = |text: &&&'static str| bytes.abs_diff(u64::try_from(text.len()).unwrap_or(u64::MAX)) / 32;
    turned.min_by_key(distance).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::own_prompts::texts::built_in;

    fn model(name: &str, needs: SamplerNeeds, forms: Vec<RequestForm>) -> PromptedModel {
        PromptedModel {
            name: name.to_owned(),
            needs,
            forms,
            chats: Vec::new(),
        }
    }

    /// Chats without instructions with so many answers of a miner, as many as are asked.
    fn answered(answers: usize) -> Vec<AnsweredChat> {
        let turn = r#"{"role":"user","content":"x"},{"role":"assistant","content":"x"},"#.repeat(answers - 1);
        let request = format!(r#"{{"messages":[{turn}{{"role":"user","content":"x"}}]}}"#);
        let chat = |number: u64| AnsweredChat::read(request.as_bytes(), &format!("answer {number}."));
        (0..4).map(|number| chat(number).unwrap()).collect()
    }

    fn list_of(models: &[PromptedModel], fresh: &[String], rounds: usize, seed: u8) -> CanaryList {
        let plan = ListPlan {
            models,
            fresh,
            texts: &built_in(),
            tokens: 16,
            repeats: Repeats(rounds),
        };
        make_list(&plan, &[seed; 32])
    }

    fn bodies(list: &CanaryList) -> Vec<String> {
        let text = |canary: &Canary| String::from_utf8(canary.request.clone()).unwrap();
        (0..).map_while(|place| list.next(place).map(text)).collect()
    }

    fn parsed(list: &CanaryList) -> Vec<Value> {
        bodies(list)
            .iter()
            .map(|body| serde_json::from_str(body).unwrap())
            .collect()
    }

    #[test]
    fn a_list_is_a_function_of_its_seed_and_names_every_model_in_turn() {
        let models = ["a", "b"].map(|name| model(name, SamplerNeeds::Nothing, Vec::new()));
        let list = |seed| list_of(&models, &[], 256, seed);
        assert_eq!(list(1), list(1));
        assert_ne!(list(1).root(), list(2).root());
        let asked = parsed(&list(1));
        assert_eq!(asked.len(), 512);
        for (place, body) in asked.iter().enumerate() {
            assert_eq!(body["model"], models[place % 2].name);
        }
        for four in asked.chunks(4) {
            let with_ids = four.iter().filter(|body| body["return_token_ids"] == true);
            assert_eq!(with_ids.count(), 2, "one of every two for each model");
        }
        let lengths: BTreeSet<u64> = asked
            .iter()
            .map(|body| body["max_tokens"].as_u64().unwrap())
            .collect();
        assert_eq!(lengths, [12, 14, 16].into());
        let texts = list_of(&models, &[], 1, 1);
        assert_eq!(texts.next(2), None);
        let none = ListPlan {
            models: &models,
            fresh: &[],
            texts: &[],
            tokens: 16,
            repeats: Repeats(1),
        };
        assert_eq!(make_list(&none, &[1; 32]).next(0), None);
    }

    #[test]
    fn a_prompt_has_the_form_of_a_users_request_and_other_words() {
        let requests = [
            r#"{"model":"tiny","messages":[{"role":"system","content":"You are a pirate, matey."},{"role":"user","content":"Where is the treasure of the old captain buried?"}],"max_tokens":9,"top_p":0.9}"#,
            r#"{"model": "tiny", "prompt": "Once upon a time there was a", "stream": true, "stream_options": {"include_usage": true}, "seed": null}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"},{"role":"user","content":"e"}],"model":"tiny","max_completion_tokens":4096}"#,
        ];
        for (number, request) in requests.iter().enumerate() {
            let form = RequestForm::read(request.as_bytes(), number == 1).unwrap();
            let asked = PromptedModel {
                chats: answered(2),
                ..model("tiny", SamplerNeeds::Nothing, vec![form.clone()])
            };
            let list = list_of(&[asked], &[], 4, 1);
            for place in 0..4 {
                let canary = list.next(place).unwrap();
                let again = RequestForm::read(&canary.request, canary.has_nonce()).unwrap();
                let shape = |form: &RequestForm| {
                    let mut form = form.clone();
                    for field in &mut form.fields {
                        match field {
                            FormField::Messages(messages) => {
                                messages.iter_mut().for_each(|one| one.bytes = 0)
                            }
                            FormField::Prompt(bytes) => *bytes = 0,
                            FormField::Kept(name, value) if name == "max_completion_tokens" => {
                                *value = "16".to_owned();
                            }
                            FormField::Kept(_, _) | FormField::Model => {}
                        }
                    }
                    form
                };
                assert_eq!(shape(&again), shape(&form));
                let text = String::from_utf8(canary.request.clone()).unwrap();
                for word in ["treasure", "pirate", "Once"] {
                    assert!(!text.contains(word), "{text}");
                }
            }
        }
    }

    #[test]
    fn second_and_third_turns_go_on_with_answers_of_miners_each_of_which_comes_once() {
        let chats = [answered(1), answered(2)].concat();
        let with_chats = PromptedModel {
            chats: chats.clone(),
            ..model("a", SamplerNeeds::Nothing, Vec::new())
        };
        let asked = parsed(&list_of(&[with_chats], &[], 256, 1));
        let turns = |body: &Value| {
            let messages = body["messages"].as_array().unwrap();
            messages
                .iter()
                .filter(|message| message["role"] == "assistant")
                .count()
        };
        let of_turn = |answers| asked.iter().filter(|body| turns(body) == answers).count();
        assert_eq!(
            (of_turn(0), of_turn(1), of_turn(2)),
            (248, 4, 4),
            "each chat is gone on with"
        );
        for number in 0..4 {
            let answer = format!("answer {number}.");
            let uses = asked.iter().filter(|body| body.to_string().contains(&answer));
            assert_eq!(uses.count(), 2, "of a chat of each length");
        }
        // Without an answered chat all are first turns: made-up answers are certainly no miner's.
        let none = parsed(&list_of(
            &[model("a", SamplerNeeds::Nothing, Vec::new())],
            &[],
            256,
            1,
        ));
        assert!(none.iter().all(|body| turns(body) == 0));
    }

    #[test]
    fn prompts_of_the_validators_own_are_used_once_and_before_the_built_in_ones() {
        let fresh: Vec<String> = (0..5)
            .map(|number| format!("a question nobody knows {number}"))
            .collect();
        let list = list_of(&[model("a", SamplerNeeds::Nothing, Vec::new())], &fresh, 8, 3);
        let asked = bodies(&list);
        for text in &fresh {
            let uses = asked.iter().filter(|body| body.contains(text.as_str())).count();
            assert_eq!(uses, 1, "{text}");
        }
        assert!(asked.iter().skip(5).all(|body| !body.contains("nobody knows")));
    }

    #[test]
    fn a_prompt_to_another_engine_has_the_fields_that_its_answer_needs() {
        let fields = |needs: SamplerNeeds| {
            let asked = parsed(&list_of(&[model("a", needs, Vec::new())], &[], 8, 1));
            let names = |body: &Value| {
                let mut names: Vec<String> = body.as_object().unwrap().keys().cloned().collect();
                names.sort();
                names.join(" ")
            };
            let all: BTreeSet<String> = asked.iter().map(names).collect();
            let have_blanks = asked
                .iter()
                .all(|body| body.get("seed").is_some_and(Value::is_null));
            (all, have_blanks)
        };
        let (names, have_blanks) = fields(SamplerNeeds::Seed);
        assert_eq!(
            names,
            ["max_tokens messages model seed stream temperature".to_owned()].into()
        );
        assert!(have_blanks, "its position gives the seed");
        let (names, have_blanks) = fields(SamplerNeeds::SeedAndIds);
        let with_ids = "max_tokens messages model return_token_ids seed stream temperature";
        assert_eq!(names, [with_ids.to_owned()].into());
        assert!(have_blanks);
        let (names, have_blanks) = fields(SamplerNeeds::NoParameters);
        assert_eq!(names, ["max_tokens messages model stream".to_owned()].into());
        assert!(!have_blanks);
    }
}
