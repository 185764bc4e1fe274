//! The parts around every page: the head, the navigation, the account, and the end.

use maud::{Markup, html};
use muster_page_layout::document::{self, NavigationEntry, PageHead};
pub(crate) use muster_page_layout::document::{outer_page, problem, scroll};
use muster_protocol::Timestamp;

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

/// A page for a visitor who is signed in.
pub(crate) fn page(title: &str, section: Section, visitor: &Visitor<'_>, body: &Markup) -> String {
    let entries = SECTIONS.map(|(entry, path, name)| NavigationEntry {
        path,
        name,
        is_current: entry == section,
    });
    let head = PageHead {
        title,
        entries: &entries,
        who: &shorten(visitor.account),
        whole_name: visitor.account,
        form_token: Some(visitor.form_token),
    };
    document::page(&head, body)
}

/// The hidden field by which the server knows its own forms.
pub(crate) fn token(visitor: &Visitor<'_>) -> Markup {
    document::token(visitor.form_token)
}

/// A part of a page, or the reason why there is none.
pub(crate) fn part<T>(part: &crate::PagePart<T>, show: impl FnOnce(&T) -> Markup) -> Markup {
    match part {
        Ok(found) => show(found),
        Err(reason) => html! { p.problem { (reason) } },
    }
}
