//! The files in the store: inputs and outputs of jobs.

use maud::{Markup, html};
use muster_protocol::rest::{FilePage, FileView};

use crate::PagePart;
use crate::frame::{Section, Visitor, page, part, problem, scroll, token};
use crate::text::{bytes, number, plain, time};

/// The files on a page.
pub const PAGE_SIZE: u64 = 50;

/// The page. `number` counts from 1.
pub fn render(visitor: &Visitor<'_>, at: u64, found: &PagePart<FilePage>, failed: Option<&str>) -> String {
    let body = html! {
        h1 { "Files" }
        @if let Some(reason) = failed { (problem(reason)) }
        form #upload.upload data-upload data-form-token=(visitor.form_token) {
            label for="file" { "Upload" }
            input #file type="file" name="file" multiple;
            button type="submit" { "Upload" }
            progress #upload-progress hidden max="1" value="0" aria-label="Upload" {}
        }
        noscript { p.help { "Uploading needs a script. " code { "muster files put FILE" } " does not." } }
        (part(found, |found| html! {
            (list(visitor, &found.results))
            (pager(at, found.count))
        }))
    };
    page("Files", Section::Files, visitor, &body)
}

fn list(visitor: &Visitor<'_>, files: &[FileView]) -> Markup {
    if files.is_empty() {
        return html! { p.empty { "No files. Outputs of jobs appear here, too." } };
    }
    let table = html! {
        table {
            thead { tr {
                th scope="col" { "Name" }
                th.n scope="col" { "Size" }
                th scope="col" { "State" }
                th.wide scope="col" { "SHA-256" }
                th.n.wide scope="col" { "Made" }
                th scope="col" { span.unseen { "Actions" } }
            } }
            tbody { @for file in files { (row(visitor, file)) } }
        }
    };
    scroll("Files", &table)
}

fn row(visitor: &Visitor<'_>, file: &FileView) -> Markup {
    let name = plain(&file.name);
    let digest = file.sha256.as_deref().unwrap_or("—");
    html! {
        tr {
            th.mono.file-name scope="row" {
                @if file.complete { a href=(format!("/files/{}/download", file.id)) { (name) } } @else { (name) }
            }
            td.n { (file.size.map_or_else(|| "—".to_owned(), bytes)) }
            td { @if file.complete { "complete" } @else { "waits, " (bytes(file.received)) " so far" } }
            td.mono.wide title=(digest) { (digest.chars().take(12).collect::<String>()) }
            td.n.wide { (time(file.created_at, visitor.now)) }
            td.n {
                details.confirm {
                    summary.button aria-label=(format!("Delete {name}")) { "Delete" }
                    form method="post" action=(format!("/files/{}/delete", file.id)) {
                        (token(visitor))
                        button.danger type="submit" { "Delete the file" }
                    }
                }
            }
        }
    }
}

fn pager(at: u64, count: u64) -> Markup {
    let last = count.div_ceil(PAGE_SIZE).max(1);
    let to = |page: u64| format!("/files?page={page}");
    html! {
        nav.pager aria-label="Pages" {
            @if at > 1 { a rel="prev" href=(to(at.saturating_sub(1))) { "Newer" } }
            span { (number(count)) " files, page " (number(at)) " of " (number(last)) }
            @if at < last { a rel="next" href=(to(at.saturating_add(1))) { "Older" } }
        }
    }
}
