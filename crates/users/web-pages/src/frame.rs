//! The parts around every page: the head, the navigation, the account, and the end.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use muster_protocol::Timestamp;

use crate::assets;
use crate::text::shorten;

/// The visitor that a page is made for.
#[derive(Clone, Copy, Debug)]
pub struct Visitor<'a> {
    /// The account's name.
    pub account: &'a str,
    /// The token of the page's forms.
    pub form_token: &'a str,
    /// The time at which the page is made.
    pub now: Timestamp,
}

/// The entry of the navigation that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The account in numbers, the newest jobs, and the offers of the subnet.
    Overview,
    /// The list of jobs and its jobs.
    Jobs,
    /// The conversation with a model.
    Chat,
    /// The files in the store.
    Files,
    /// The tokens by day and model.
    Usage,
    /// API keys and browsers.
    Keys,
}

const SECTIONS: [(Section, &str, &str); 6] = [
    (Section::Overview, "/", "Overview"),
    (Section::Jobs, "/jobs", "Jobs"),
    (Section::Chat, "/chat", "Chat"),
    (Section::Files, "/files", "Files"),
    (Section::Usage, "/usage", "Usage"),
    (Section::Keys, "/keys", "Keys"),
];

/// The mark of Muster: files in order.
const MARK: &str = r#"<svg class="mark" viewBox="0 0 16 16" width="18" height="18" aria-hidden="true"><path d="M1 13V3h2.6l4.4 6 4.4-6H15v10h-2.4V6.9L8 12.9 3.4 6.9V13z"/></svg>"#;

/// A page for a visitor who is signed in.
pub(crate) fn page(title: &str, section: Section, visitor: &Visitor<'_>, body: &Markup) -> String {
    let inner = html! {
        header.top {
            a.brand href="/" { (PreEscaped(MARK)) "Muster" }
            nav aria-label="Main" {
                @for (entry, path, name) in SECTIONS {
                    a href=(path) aria-current=[(entry == section).then_some("page")] { (name) }
                }
            }
            div.who {
                span.mono title=(visitor.account) { (shorten(visitor.account)) }
                form method="post" action="/sign-out" {
                    (token(visitor))
                    button.quiet type="submit" { "Sign out" }
                }
            }
        }
        main #main tabindex="-1" { (body) }
        p.unseen #say role="status" aria-live="polite" {}
    };
    document(title, &inner)
}

/// A page for a visitor who is not signed in.
pub(crate) fn outer_page(title: &str, body: &Markup) -> String {
    let inner = html! {
        main.narrow #main tabindex="-1" {
            p.brand { (PreEscaped(MARK)) "Muster" }
            (body)
        }
    };
    document(title, &inner)
}

fn document(title: &str, inner: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Muster" }
                link rel="stylesheet" href=(assets::STYLES.path());
                link rel="icon" type="image/svg+xml" href=(assets::ICON.path());
                script src=(assets::SCRIPT.path()) defer {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                (inner)
            }
        }
    };
    page.into_string()
}

/// The hidden field by which the server knows its own forms.
pub(crate) fn token(visitor: &Visitor<'_>) -> Markup {
    html! { input type="hidden" name="form_token" value=(visitor.form_token); }
}

/// A message above a page's content.
pub(crate) fn problem(words: &str) -> Markup {
    html! { p.problem role="alert" { (words) } }
}

/// A table that scrolls by itself where the window is narrow.
pub(crate) fn scroll(label: &str, table: &Markup) -> Markup {
    html! { div.scroll role="region" aria-label=(label) tabindex="0" { (table) } }
}

/// A part of a page, or the reason why there is none.
pub(crate) fn part<T>(part: &crate::PagePart<T>, show: impl FnOnce(&T) -> Markup) -> Markup {
    match part {
        Ok(found) => show(found),
        Err(reason) => html! { p.problem { (reason) } },
    }
}
