//! The document around every page: its head, the navigation, and the parts that pages repeat.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::headers_and_assets;

/// The mark of Muster: files in order.
const MARK: &str = r#"<svg class="mark" viewBox="0 0 16 16" width="18" height="18" aria-hidden="true"><path d="M1 13V3h2.6l4.4 6 4.4-6H15v10h-2.4V6.9L8 12.9 3.4 6.9V13z"/></svg>"#;

/// An entry of the navigation.
#[derive(Clone, Copy, Debug)]
pub struct NavigationEntry {
    /// The path that it leads to.
    pub path: &'static str,
    /// The text of the link.
    pub name: &'static str,
    /// Whether the page belongs to it.
    pub is_current: bool,
}

/// The head of a page for a visitor who is signed in.
#[derive(Clone, Copy, Debug)]
pub struct PageHead<'a> {
    /// The page's title.
    pub title: &'a str,
    /// The entries of the navigation, from left to right.
    pub entries: &'a [NavigationEntry],
    /// The short name of the visitor, or of what the pages are about.
    pub who: &'a str,
    /// The whole name.
    pub whole_name: &'a str,
    /// The token of the form that signs the visitor out; `None` where nobody is signed in.
    pub form_token: Option<&'a str>,
}

/// A page with navigation.
pub fn page(head: &PageHead<'_>, body: &Markup) -> String {
    let inner = html! {
        header.top {
            a.brand href="/" { (PreEscaped(MARK)) "Muster" }
            nav aria-label="Main" {
                @for entry in head.entries {
                    a href=(entry.path) aria-current=[entry.is_current.then_some("page")] { (entry.name) }
                }
            }
            div.who {
                span.mono title=(head.whole_name) { (head.who) }
                @if let Some(form_token) = head.form_token {
                    form method="post" action="/sign-out" {
                        (token(form_token))
                        button.quiet type="submit" { "Sign out" }
                    }
                }
            }
        }
        main #main tabindex="-1" { (body) }
        p.unseen #say role="status" aria-live="polite" {}
    };
    document(head.title, &inner)
}

/// A page for a visitor who is not signed in.
pub fn outer_page(title: &str, body: &Markup) -> String {
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
                link rel="stylesheet" href=(headers_and_assets::STYLES.path());
                link rel="icon" type="image/svg+xml" href=(headers_and_assets::ICON.path());
                script src=(headers_and_assets::SCRIPT.path()) defer {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                (inner)
            }
        }
    };
    page.into_string()
}

/// The page that loads itself again from here. A browser sends its session only with requests that begin at this
/// server, so a link elsewhere would seem to lead to the sign-in.
pub fn render_again() -> String {
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0\">\
     <title>Muster</title></head><body></body></html>"
        .to_owned()
}

/// The hidden field by which the server knows its own forms.
pub fn token(form_token: &str) -> Markup {
    html! { input type="hidden" name="form_token" value=(form_token); }
}

/// A message above a page's content.
pub fn problem(words: &str) -> Markup {
    html! { p.problem role="alert" { (words) } }
}

/// A table that scrolls by itself where the window is narrow.
pub fn scroll(label: &str, table: &Markup) -> Markup {
    html! { div.scroll role="region" aria-label=(label) tabindex="0" { (table) } }
}
