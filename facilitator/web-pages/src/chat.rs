//! A conversation with a model. The script sends the messages, shows the answer as it comes, and asks for its proof.

use maud::html;

use crate::PagePart;
use crate::frame::{Section, Visitor, page, part};
use crate::headers_and_assets;

/// A model that is served now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatModel {
    /// The model's id in requests.
    pub id: String,
}

/// The page of a conversation as HTML.
pub fn render(visitor: &Visitor<'_>, models: &PagePart<Vec<ChatModel>>) -> String {
    let body = html! {
        div.title { h1 { "Chat" } }
        (part(models, |models| html! {
            @if models.is_empty() {
                p.empty { "No model is served now: no validator with a gateway is connected, or it serves none." }
            } @else {
                noscript { p.problem { "The conversation needs a script. " code { "muster chat MODEL" } " does not." } }
                div data-chat data-form-token=(visitor.form_token) data-module=(headers_and_assets::PROOF_MODULE.path()) {
                    div #talk.talk role="log" aria-live="polite" aria-label="Conversation" tabindex="0" {
                        p.empty data-empty {
                            "Each answer comes with a proof that the session which gave it has signed."
                        }
                    }
                    form #ask.ask {
                        label.unseen for="message" { "Message" }
                        textarea #message name="message" rows="3" required placeholder="Message" {}
                        div.ask-line {
                            label for="model" { "Model" }
                            select #model name="model" {
                                @for model in models {
                                    option value=(model.id) { (model.id) }
                                }
                            }
                            label for="max-tokens" { "Most tokens" }
                            input #max-tokens.short name="max_tokens" type="number" min="1" max="100000" value="256";
                            span.grow {}
                            button #stop type="button" hidden { "Stop" }
                            button.main type="submit" { "Send" }
                        }
                    }
                }
            }
        }))
    };
    page("Chat", Section::Chat, visitor, &body)
}
