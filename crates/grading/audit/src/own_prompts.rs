//! A validator's own prompts, in the forms in which users ask. Pure.
//!
//! A miner that can distinguish the validator's own prompts from users' requests answers them honestly and everybody
//! else cheaply. So a prompt takes its fields, their order and values, the roles and lengths of its messages, and
//! whether it names a nonce, from a request of a user. Users' words stay theirs: a form holds none of them.

mod answered_chat;
mod authored;
mod list;
mod request_form;
mod texts;

pub use answered_chat::AnsweredChat;
pub use authored::{MAX_AUTHORED_TOKENS, author_request, read_authored};
pub use list::{ListPlan, PromptedModel, Repeats, SamplerNeeds, make_list};
pub use request_form::{FormField, MessageForm, RequestForm, Role, Spacing};
pub use texts::built_in;
