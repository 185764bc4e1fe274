//! The output of a job on its page, and the files in the store that its uploads lead to.

use maud::{Markup, html};
use muster_protocol::rest::JobView;
use muster_protocol::upload::FileUpload;

use crate::text::{bytes, plain};

/// The most characters of each stream that a page shows. The whole output has an address of its own.
const MOST_SHOWN: usize = 200_000;

/// The section with the output. While the job is open, the script fills it.
pub(crate) fn section(view: &JobView) -> Markup {
    let open = !view.last_status().is_terminal();
    html! {
        section aria-labelledby="output" {
            div.title {
                h2 #output { "Output" }
                div.tools {
                    label.unseen for="find" { "Search the output" }
                    input #find type="search" placeholder="Search" autocomplete="off" spellcheck="false"
                        aria-describedby="found";
                    span #found.dim role="status" {}
                    label.check { input #follow type="checkbox" checked; " follow" }
                }
            }
            div #log.log tabindex="0" role="region" aria-label="Output of the job" {
                div #pieces data-pieces {
                    @if open {
                        p.empty data-empty { "Nothing yet. Output appears here as the program prints it." }
                        noscript { p.empty { "Without a script, load this page again to see more." } }
                    } @else {
                        (streams(view))
                    }
                }
            }
        }
    }
}

fn streams(view: &JobView) -> Markup {
    let both = [("stdout", &view.stdout), ("stderr", &view.stderr)];
    html! {
        @if view.stdout.is_empty() && view.stderr.is_empty() {
            p.empty data-empty { "The program printed nothing." }
        }
        @for (name, text) in both {
            @if !text.is_empty() {
                @let (shown, left_out) = tail(text);
                div.stream-head {
                    span { (name) }
                    a href=(format!("/jobs/{}/output/{name}", view.uuid)) {
                        "all of it, " (bytes(u64::try_from(text.len()).unwrap_or_default()))
                    }
                }
                @if left_out > 0 { p.empty { "The first " (left_out) " characters are left out here." } }
                pre class=(name) data-lines { (plain(shown)) }
            }
        }
    }
}

/// The end of a text that is not too long, and the number of characters before it.
fn tail(text: &str) -> (&str, usize) {
    let count = text.chars().count();
    let left_out = count.saturating_sub(MOST_SHOWN);
    let start = text.char_indices().nth(left_out).map_or(text.len(), |(at, _)| at);
    (text.get(start..).unwrap_or_default(), left_out)
}

/// The id of the file in the facilitator's own store that an upload goes to, from its signed URL.
pub fn stored_file(upload: &FileUpload) -> Option<&str> {
    let FileUpload::SingleFilePut(put) = upload else {
        return None;
    };
    stored_file_of(&put.url, "upload")
}

/// The id of the file in a signed URL of the facilitator's store: `…/files/ID/upload?Expires=…&Signature=…`.
pub fn stored_file_of<'a>(url: &'a str, access: &str) -> Option<&'a str> {
    let (path, query) = url.split_once('?')?;
    if !(query.starts_with("Expires=") && query.contains("&Signature=")) {
        return None;
    }
    let mut parts = path.rsplit('/');
    let is_ours = parts.next() == Some(access);
    let id = parts.next()?;
    let plain = id.len() == 36 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    (is_ours && plain && parts.next() == Some("files")).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signed_urls_of_the_store_name_a_file() {
        let id = "11111111-2222-4333-8444-555555555555";
        let url = format!("http://h:1/files/{id}/upload?Expires=1&Signature=ab");
        assert_eq!(stored_file_of(&url, "upload"), Some(id));
        assert_eq!(stored_file_of(&url, "content"), None);
        for bad in [
            format!("http://h/files/{id}/upload"),
            format!("http://h/{id}/upload?Expires=1&Signature=ab"),
            "http://h/files/../upload?Expires=1&Signature=ab".to_owned(),
        ] {
            assert_eq!(stored_file_of(&bad, "upload"), None, "{bad}");
        }
    }

    #[test]
    fn the_end_of_a_long_output_is_shown() {
        assert_eq!(tail("abc"), ("abc", 0));
        let long = format!("{}ż", "x".repeat(MOST_SHOWN + 4));
        let (shown, left_out) = tail(&long);
        assert_eq!((shown.chars().count(), left_out), (MOST_SHOWN, 5));
        assert!(shown.ends_with('ż'));
    }
}
