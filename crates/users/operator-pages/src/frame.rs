//! The parts that operators' pages repeat.

use maud::{Markup, html};
use muster_page_layout::document::{NavigationEntry, PageHead, page, scroll};
use muster_page_layout::text::{plain, shorten};
use muster_protocol::Timestamp;

use crate::CallAnswer;

/// The characters of a text in a cell that is not broken within a word.
const SHORT: usize = 32;

/// Entries of a navigation: path and name.
pub(crate) type Entries<const N: usize> = [(&'static str, &'static str); N];

/// A page of a role: `key` is the role's hotkey, `path` the page's own. Without `signed_in` there is no sign-out.
pub(crate) fn role_page<const N: usize>(
    title: &str,
    key: &str,
    path: &str,
    entries: Entries<N>,
    signed_in: bool,
    body: &Markup,
) -> String {
    let entries = entries.map(|(to, name)| NavigationEntry {
        path: to,
        name,
        is_current: to == path,
    });
    let name = plain(key);
    let head = PageHead {
        title,
        entries: &entries,
        who: &shorten(&name),
        whole_name: &name,
        // The cookie is SameSite=Strict and a page changes nothing: forms need no token of their own.
        form_token: signed_in.then_some(""),
    };
    page(&head, body)
}

/// A part of a page, or the reason why there is none.
pub(crate) fn part<T>(part: &CallAnswer<T>, show: impl FnOnce(&T) -> Markup) -> Markup {
    match part {
        Ok(found) => show(found),
        Err(reason) => html! { p.problem { (plain(reason)) } },
    }
}

/// A section with a heading.
pub(crate) fn section(id: &str, title: &str, body: &Markup) -> Markup {
    html! { section aria-labelledby=(id) { h2 id=(id) { (title) } (body) } }
}

/// Figures at the head of a page: name and value, `bad` for those that want attention.
pub(crate) fn figures(entries: &[(&str, String, bool)]) -> Markup {
    html! {
        dl.figures {
            @for (name, value, bad) in entries {
                div { dt { (name) } dd { @if *bad { span.bad { (value) } } @else { (value) } } }
            }
        }
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    /// Text, set to the left.
    Text(&'static str),
    /// A number, set to the right.
    Number(&'static str),
    /// Text that is left out where the window is narrow.
    Wide(&'static str),
}

/// A table; without rows, `empty` states why. The first cell of a row is its head.
pub(crate) fn table<const N: usize>(
    label: &str,
    columns: [Column; N],
    rows: &[[Markup; N]],
    empty: &str,
) -> Markup {
    if rows.is_empty() {
        return html! { p.empty { (empty) } };
    }
    let class = |column: Column| match column {
        Column::Text(_) => "",
        Column::Number(_) => "n",
        Column::Wide(_) => "wide",
    };
    let name = |column: Column| match column {
        Column::Text(name) | Column::Number(name) | Column::Wide(name) => name,
    };
    let body = html! {
        table {
            thead { tr { @for column in columns { th scope="col" class=(class(column)) { (name(column)) } } } }
            tbody {
                @for row in rows {
                    tr {
                        @for (column, (place, cell)) in columns.into_iter().zip(row.iter().enumerate()) {
                            @if place == 0 { th scope="row" class=(class(column)) { (cell) } }
                            @else { td class=(class(column)) { (cell) } }
                        }
                    }
                }
            }
        }
    };
    scroll(label, &body)
}

/// A text of a stranger. A long one is broken anywhere, so that no word makes its table wider.
pub(crate) fn words(text: &str) -> Markup {
    let shown = plain(text);
    html! { @if shown.chars().count() > SHORT { span.long-words { (shown) } } @else { (shown) } }
}

/// A key or an id, shortened, with the whole in its title.
pub(crate) fn key(text: &str) -> Markup {
    html! { span.mono title=(plain(text)) { (plain(&shorten(text))) } }
}

/// A time, or a dash.
pub(crate) fn when(at: Option<Timestamp>, now: Timestamp) -> Markup {
    match at {
        Some(at) => muster_page_layout::text::time(at, now),
        None => html! { "—" },
    }
}

/// A value that is good or bad.
pub(crate) fn verdict(text: &str, good: bool) -> Markup {
    html! { span class=(if good { "good" } else { "bad" }) { (plain(text)) } }
}

/// A bar of a share in thousandths.
pub(crate) fn bar(permille: u32, label: &str) -> Markup {
    let width = permille.min(1_000);
    html! {
        svg viewBox="0 0 1000 8" preserveAspectRatio="none" height="8" width="80" role="img" aria-label=(label) {
            rect.track x="0" y="0" width="1000" height="8" {}
            rect.fill x="0" y="0" width=(width) height="8" {}
        }
        " " (label)
    }
}
