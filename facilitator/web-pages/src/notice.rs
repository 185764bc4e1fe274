//! A page with a message only: an error, or that there is nothing at an address.

use maud::html;

use crate::frame::{Section, Visitor, outer_page, page};

/// A notice for a visitor who is signed in.
pub fn render(visitor: &Visitor<'_>, title: &str, words: &str) -> String {
    let body = html! {
        h1 { (title) }
        p role="alert" { (words) }
        p { a href="/" { "Overview" } " · " a href="/jobs" { "Jobs" } }
    };
    page(title, Section::Overview, visitor, &body)
}

/// A notice for a visitor who is not.
pub fn render_outside(title: &str, words: &str) -> String {
    let body = html! {
        h1 { (title) }
        p role="alert" { (words) }
        p { a href="/sign-in" { "Sign in" } }
    };
    outer_page(title, &body)
}
