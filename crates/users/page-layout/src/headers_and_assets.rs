//! The styles, the script and the icon, embedded in the program, and the policy that pages are served under.

use std::sync::LazyLock;

use muster_protocol::Digest;

/// Everything that a page may load: files of this server alone, no inline script, no inline style, no frame.
pub const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                                  connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The policy of the page that runs [`PROOF_MODULE`]: the same, and a module of WebAssembly of this server.
pub const MODULE_POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; \
                                 img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; \
                                 frame-ancestors 'none'";

/// The headers of every page, by their names in small letters: a browser loads nothing foreign and frames nothing.
pub const PAGE_HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", CONTENT_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// A file that pages load. Its path has the hash of its bytes, so browsers may keep it for good.
#[derive(Debug)]
pub struct Asset {
    /// The content type.
    pub kind: &'static str,
    /// The contents of the file.
    pub contents: &'static [u8],
    path: String,
}

/// The styles of all pages, for light and dark.
pub static STYLES: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "text/css; charset=utf-8",
        "css",
        include_bytes!("../assets/muster.css"),
    )
});

/// The script of all pages, which work without it but for chats and uploads.
pub static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "text/javascript; charset=utf-8",
        "js",
        include_bytes!("../assets/muster.js"),
    )
});

/// The icon that browsers show beside the title.
pub static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("image/svg+xml", "svg", include_bytes!("../assets/icon.svg")));

/// The check of an answer's proof, which the page of a conversation loads with the first proof. `cargo xtask wasm`
/// makes it of `muster-proof-module`.
pub static PROOF_MODULE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("application/wasm", "wasm", include_bytes!("../assets/proof.wasm")));

// === impl Asset ===

impl Asset {
    fn new(kind: &'static str, ending: &str, contents: &'static [u8]) -> Self {
        let hash: String = Digest::of(contents).hex().chars().take(16).collect();
        Self {
            kind,
            contents,
            path: format!("/assets/{hash}.{ending}"),
        }
    }

    /// The path of the file on the server.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// The file at this path.
pub fn find(path: &str) -> Option<&'static Asset> {
    let all: [&'static Asset; 4] = [&STYLES, &SCRIPT, &ICON, &PROOF_MODULE];
    all.into_iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages' own text is a few kilobytes more.
    const MOST_BYTES: usize = 100 * 1024;

    #[test]
    fn the_first_load_stays_small_and_names_no_other_server() {
        let all: [&Asset; 3] = [&STYLES, &SCRIPT, &ICON];
        let bytes: usize = all.iter().map(|asset| asset.contents.len()).sum();
        assert!(bytes < MOST_BYTES, "{bytes}");
        for asset in all {
            let text = std::str::from_utf8(asset.contents).unwrap();
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.contains("://"), "{}", asset.path());
            assert_eq!(find(asset.path()).unwrap().contents, asset.contents);
        }
        assert!(find(PROOF_MODULE.path()).unwrap().contents.starts_with(b"\0asm"));
        assert!(find("/assets/other.css").is_none());
    }

    #[test]
    fn the_policy_allows_nothing_inline_and_nothing_foreign() {
        assert!(!CONTENT_POLICY.contains("unsafe") && !CONTENT_POLICY.contains('*'));
        assert!(CONTENT_POLICY.starts_with("default-src 'none'"));
        // A page with a module may run that, and nothing else more.
        assert_eq!(MODULE_POLICY.replace(" 'wasm-unsafe-eval'", ""), CONTENT_POLICY);
    }
}
