//! Chats that a miner has answered, which later prompts go on with: a client sends the earlier turns back, and a miner
//! recognises its own answers in them.

use serde_json::{Map, Value};

use crate::own_prompts::request_form::{MessageForm, Role};

/// Answers that a chat may have and still be gone on with: prompts are first, second or third turns.
pub(crate) const MAX_ANSWERS: usize = 2;
/// The longest chat that is gone on with, in bytes of its messages: a reference reads all of it.
const MAX_BYTES: usize = 8 * 1024;

/// A chat whose last message is the model's answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnsweredChat(Vec<(Role, String)>);

impl AnsweredChat {
    /// The chat of an own prompt with the answer to it; `None` if the request is for no chat, if the answer is empty,
    /// or if the chat is too long to be gone on with.
    pub fn read(request: &[u8], answer: &str) -> Option<Self> {
        let asked: Map<String, Value> = serde_json::from_slice(request).ok()?;
        let messages = asked.get("messages")?.as_array()?;
        let mut turns: Vec<(Role, String)> = messages.iter().map(message).collect::<Option<_>>()?;
        turns.push((Role::Assistant, answer.to_owned()));
        let read = Self(turns);
        let bytes: usize = read.0.iter().map(|(_, text)| text.len()).sum();
        let fits = !answer.is_empty() && bytes <= MAX_BYTES && read.answers() <= MAX_ANSWERS;
        fits.then_some(read)
    }

    /// The answers in it.
    pub(crate) fn answers(&self) -> usize {
        self.0.iter().filter(|(role, _)| *role == Role::Assistant).count()
    }

    fn has_system(&self) -> bool {
        self.0.iter().any(|(role, _)| *role == Role::System)
    }

    /// Whether one of its messages has this text.
    pub(crate) fn has(&self, text: &str) -> bool {
        self.0.iter().any(|(_, said)| said == text)
    }

    /// Its messages, speaker and text.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (Role, &str)> {
        self.0.iter().map(|(role, text)| (*role, text.as_str()))
    }
}

/// Takes the chat out of `chats` that has as many answers as the messages of a form, or the most below; `None` if the
/// form is a first turn, or no chat fits.
pub(crate) fn take_chat<'a>(
    chats: &mut Vec<&'a AnsweredChat>,
    form: &[MessageForm],
) -> Option<&'a AnsweredChat> {
    let of_role = |role| form.iter().filter(|one| one.role == role).count();
    let wanted = of_role(Role::Assistant).min(MAX_ANSWERS);
    let has_system = of_role(Role::System) > 0;
    let fits = |chat: &AnsweredChat| chat.answers() <= wanted;
    let candidates = chats.iter().enumerate().filter(|(_, chat)| fits(chat));
    // Of equal ones the first, which was answered last.
    let best = candidates
        .min_by_key(|(place, chat)| (wanted - chat.answers(), chat.has_system() != has_system, *place))?;
    let place = best.0;
    Some(chats.remove(place))
}

fn message(message: &Value) -> Option<(Role, String)> {
    let role = Role::of_name(message.get("role")?.as_str()?)?;
    Some((role, message.get("content")?.as_str()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(roles: &[Role]) -> Vec<MessageForm> {
        roles
            .iter()
            .map(|role| MessageForm {
                role: *role,
                bytes: 9,
            })
            .collect()
    }

    fn first(question: &str) -> AnsweredChat {
        let request = format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"{question}"}}]}}"#);
        AnsweredChat::read(request.as_bytes(), "an answer").unwrap()
    }

    fn second() -> AnsweredChat {
        let request = br#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},
            {"role":"assistant","content":"a"},{"role":"user","content":"r"}]}"#;
        AnsweredChat::read(request, "b").unwrap()
    }

    #[test]
    fn a_chat_is_gone_on_with_twice_if_it_is_short_and_was_answered() {
        let all: Vec<(Role, String)> = second()
            .messages()
            .map(|(role, text)| (role, text.to_owned()))
            .collect();
        assert_eq!(
            (all.len(), all[4].clone()),
            (5, (Role::Assistant, "b".to_owned()))
        );
        assert_eq!((first("q").answers(), second().answers()), (1, 2));
        let third = br#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},
            {"role":"user","content":"r"},{"role":"assistant","content":"b"},{"role":"user","content":"s"}]}"#;
        assert_eq!(AnsweredChat::read(third, "c"), None, "it has had its third turn");
        let one = br#"{"messages":[{"role":"user","content":"q"}]}"#;
        assert_eq!(AnsweredChat::read(one, ""), None, "nothing was answered");
        assert_eq!(AnsweredChat::read(one, &"x".repeat(MAX_BYTES)), None, "too long");
        for other in [
            &b"no JSON"[..],
            br#"{"prompt":"q"}"#,
            br#"{"messages":[{"role":"poet","content":"q"}]}"#,
        ] {
            assert_eq!(AnsweredChat::read(other, "a"), None);
        }
    }

    #[test]
    fn a_form_gets_the_chat_of_its_turn_or_an_earlier_one_and_each_chat_is_taken_once() {
        let (one, other, two) = (first("one"), first("other"), second());
        let mut chats = vec![&one, &two, &other];
        let second_turn = form(&[Role::User, Role::Assistant, Role::User]);
        let third_turn = form(&[
            Role::User,
            Role::Assistant,
            Role::User,
            Role::Assistant,
            Role::User,
        ]);
        assert_eq!(take_chat(&mut chats, &form(&[Role::User])), None);
        assert_eq!(take_chat(&mut chats, &third_turn), Some(&two));
        assert_eq!(
            take_chat(&mut chats, &third_turn),
            Some(&one),
            "the most turns below"
        );
        assert_eq!(take_chat(&mut chats, &second_turn), Some(&other));
        assert_eq!(take_chat(&mut chats, &second_turn), None);
        assert_eq!(
            take_chat(&mut vec![&two], &second_turn),
            None,
            "it is a turn further"
        );
    }
}
