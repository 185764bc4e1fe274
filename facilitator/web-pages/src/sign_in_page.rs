//! The sign-in: with an API key, or with a one-time link from `muster login --web`.

use maud::html;

pub use muster_page_layout::document::render_again;

use crate::frame::{outer_page, problem};

/// The form of a sign-in.
#[derive(Clone, Copy, Debug)]
pub struct SignInForm<'a> {
    /// The token of the page's form.
    pub form_token: &'a str,
    /// The path to go to afterwards.
    pub next: &'a str,
    /// The reason why the last try failed.
    pub problem: Option<&'a str>,
}

/// The page with the form for an API key.
pub fn render(form: SignInForm<'_>) -> String {
    let body = html! {
        h1 { "Sign in" }
        @if let Some(reason) = form.problem { (problem(reason)) }
        form.stack method="post" action="/sign-in" {
            input type="hidden" name="form_token" value=(form.form_token);
            input type="hidden" name="next" value=(form.next);
            label for="key" { "API key" }
            input #key.mono name="key" type="password" required autocomplete="off" spellcheck="false" placeholder="msk_…"
                aria-describedby="key-help" autofocus;
            p #key-help.help { "The browser gets a session that ends after some hours. The key itself is not kept." }
            button.main type="submit" { "Sign in" }
        }
        h2 { "With a wallet" }
        p { "Run this on the machine that has the wallet, and open the link that it prints:" }
        pre.command { code { "muster login --web" } }
    };
    outer_page("Sign in", &body)
}

/// The page that asks whether a link is to be used. Opening a link does not use it, so programs that look at links
/// beforehand do no harm.
pub fn render_link(form_token: &str, account: &str, secret: &str) -> String {
    let body = html! {
        h1 { "Sign in" }
        p { "The link signs this browser in as" }
        p.mono.break { (account) }
        form.stack method="post" action="/sign-in/link" {
            input type="hidden" name="form_token" value=(form_token);
            input type="hidden" name="link" value=(secret);
            button.main type="submit" autofocus { "Sign in" }
        }
        p.help { "If this is not your account, close the page: somebody else has sent you the link." }
    };
    outer_page("Sign in", &body)
}
