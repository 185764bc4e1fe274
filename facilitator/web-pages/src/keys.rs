//! API keys, and the browsers that are signed in.

use maud::{Markup, html};
use muster_protocol::Timestamp;
use muster_protocol::account_api::{ApiKey, KeyList, KeyRight};

use crate::PagePart;
use crate::frame::{Section, Visitor, page, part, problem, scroll, token};
use crate::text::{plain, time};

/// A browser that is signed in, as the list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedInBrowser {
    /// The credential that signed in.
    pub credential: String,
    /// The browser as it describes itself.
    pub browser: String,
    /// The time of the sign-in.
    pub created_at: Timestamp,
    /// The time at which the session ends.
    pub expires_at: Timestamp,
    /// Whether it is the browser that asks.
    pub is_own: bool,
}

/// The contents of the page of keys.
#[derive(Debug)]
pub struct KeysPage<'a> {
    /// The valid keys.
    pub keys: &'a PagePart<KeyList>,
    /// The browsers that are signed in, newest first.
    pub browsers: &'a PagePart<Vec<SignedInBrowser>>,
    /// Whether the browser signs the others out.
    pub may_end_sessions: bool,
    /// The reason why the browser makes no keys now, if it makes none.
    pub making: &'a PagePart<()>,
    /// The key that was made just now, with its secret.
    pub made: Option<&'a ApiKey>,
    /// The reason why the last action failed.
    pub problem: Option<&'a str>,
}

/// The page of keys as HTML.
pub fn render(visitor: &Visitor<'_>, content: &KeysPage<'_>) -> String {
    let body = html! {
        h1 { "Keys" }
        @if let Some(reason) = content.problem { (problem(reason)) }
        @if let Some(made) = content.made { (made_key(made)) }
        (part(content.keys, |found| list(visitor, &found.results)))
        (form(visitor, content.making))
        section aria-labelledby="browsers" {
            h2 #browsers { "Signed-in browsers" }
            (part(content.browsers, |found| browsers(visitor, found)))
            @if content.may_end_sessions { (sign_out_everywhere(visitor)) }
        }
    };
    page("Keys", Section::Keys, visitor, &body)
}

fn made_key(made: &ApiKey) -> Markup {
    let secret = made.key.as_deref().unwrap_or_default();
    html! {
        div.made role="alert" {
            p { "Key " strong { (plain(&made.name)) } " is made. It is shown this once; keep it like a password." }
            p.secret { code #made-key.mono.break { (secret) } " " button type="button" data-copy="made-key" { "Copy" } }
        }
    }
}

fn list(visitor: &Visitor<'_>, keys: &[ApiKey]) -> Markup {
    if keys.is_empty() {
        return html! { p.empty { "The account has no API key." } };
    }
    let table = html! {
        table {
            thead { tr {
                th scope="col" { "Name" }
                th scope="col" { "Rights" }
                th.wide scope="col" { "Id" }
                th.n.wide scope="col" { "Made" }
                th.n scope="col" { "Ends" }
                th scope="col" { span.unseen { "Actions" } }
            } }
            tbody {
                @for key in keys {
                    tr {
                        th scope="row" { (plain(&key.name)) }
                        td { (rights(key)) }
                        td.mono.wide { (key.id) }
                        td.n.wide { (time(key.created_at, visitor.now)) }
                        td.n { @match key.expires_at {
                            Some(end) => (time(end, visitor.now)),
                            None => "never",
                        } }
                        td.n {
                            details.confirm {
                                summary.button aria-label=(format!("Revoke {}", plain(&key.name))) { "Revoke" }
                                form method="post" action=(format!("/keys/{}/revoke", key.id)) {
                                    (token(visitor))
                                    button.danger type="submit" { "Revoke it and the keys that it made" }
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    scroll("API keys", &table)
}

fn rights(key: &ApiKey) -> String {
    let names: Vec<_> = key.rights.iter().map(|right| right.as_str()).collect();
    names.join(", ")
}

fn form(visitor: &Visitor<'_>, making: &PagePart<()>) -> Markup {
    html! {
        section aria-labelledby="new-key" {
            h2 #new-key { "New key" }
            (part(making, |()| new_key(visitor)))
        }
    }
}

fn new_key(visitor: &Visitor<'_>) -> Markup {
    let about = |right: KeyRight| match right {
        KeyRight::Jobs => "submit and cancel jobs",
        KeyRight::Chat => "ask models",
        KeyRight::Files => "make, read and delete files",
        KeyRight::Read => "read jobs, usage and the account",
        KeyRight::Keys => "make and revoke keys",
    };
    html! {
        form.stack method="post" action="/keys" {
            (token(visitor))
            label for="key-name" { "Name" }
            input #key-name name="name" required maxlength="100" autocomplete="off"
                placeholder="the program that will use it";
            fieldset {
                legend { "Rights" }
                @for right in KeyRight::ALL {
                    label.check {
                        input type="checkbox" name="right" value=(right) checked[KeyRight::USUAL.contains(&right)];
                        " " strong { (right) } " " span.dim { (about(right)) }
                    }
                }
            }
            p.help {
                "The key ends with this browser's session, at the latest when you sign out. For a key that lasts, run "
                code { "muster keys new" } " on the machine that has the wallet."
            }
            div { button.main type="submit" { "Make key" } }
        }
    }
}

fn browsers(visitor: &Visitor<'_>, found: &[SignedInBrowser]) -> Markup {
    let table = html! {
        table {
            thead { tr {
                th scope="col" { "Browser" }
                th scope="col" { "Signed in with" }
                th.n scope="col" { "Since" }
                th.n scope="col" { "Ends" }
            } }
            tbody {
                @for entry in found {
                    tr {
                        td.browser { (plain(&entry.browser)) @if entry.is_own { strong { " (this one)" } } }
                        td.mono { (entry.credential) }
                        td.n { (time(entry.created_at, visitor.now)) }
                        td.n { (time(entry.expires_at, visitor.now)) }
                    }
                }
            }
        }
    };
    scroll("Signed-in browsers", &table)
}

fn sign_out_everywhere(visitor: &Visitor<'_>) -> Markup {
    html! {
        form method="post" action="/sign-out/everywhere" {
            (token(visitor))
            p.help { "This also revokes the keys that browsers have made." }
            button type="submit" { "Sign out everywhere" }
        }
    }
}
