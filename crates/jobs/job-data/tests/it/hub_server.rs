//! The part of the Hugging Face hub's HTTP API that downloads need, as its own Python client expects it: revisions,
//! pages of a tree, files of git, and large files behind a redirect to a store on another host.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_protocol::Digest;
use serde_json::json;
use sha1::{Digest as _, Sha1};

use crate::server::{Reply, Request, Server, Step, answer, file, head};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const TOKEN: &str = "hf_secret";
/// Entries of a page; the real hub has a thousand.
const PAGE: usize = 2;

/// A repository, and whether it requires the token.
#[derive(Clone)]
pub(crate) struct Repository {
    /// `models`, `datasets` or `spaces`.
    pub(crate) kind: &'static str,
    pub(crate) name: &'static str,
    pub(crate) gated: bool,
    pub(crate) files: BTreeMap<&'static str, File>,
}

#[derive(Clone)]
pub(crate) struct File {
    pub(crate) content: Vec<u8>,
    pub(crate) lfs: bool,
    /// Content that is served instead of the file's own, by a lying hub or a damaged store.
    pub(crate) instead: Option<Vec<u8>>,
}

impl File {
    fn sent(&self) -> &[u8] {
        self.instead.as_deref().unwrap_or(&self.content)
    }
}

impl Repository {
    pub(crate) fn sample() -> Self {
        let small = |text: &str| File {
            content: text.as_bytes().to_vec(),
            lfs: false,
            instead: None,
        };
        let large = |len| File {
            content: crate::support::noise(len),
            lfs: true,
            instead: None,
        };
        Self {
            kind: "models",
            name: "owner/name-1.5",
            gated: false,
            files: BTreeMap::from([
                ("config.json", small("{}")),
                ("a b/é#?%.txt", small("odd name")),
                ("data/sub/x.json", small("[1]")),
                ("model.safetensors", large(1_500_000)),
                ("empty", small("")),
            ]),
        }
    }

    fn prefix(&self) -> &'static str {
        match self.kind {
            "datasets" => "datasets/",
            "spaces" => "spaces/",
            _ => "",
        }
    }

    fn entries(&self) -> Vec<serde_json::Value> {
        let mut entries = vec![
            json!({"type": "directory", "oid": "aa536c4ea18073388b5b0bc791057a7296a00398", "size": 0, "path": "data"}),
        ];
        for (path, file) in &self.files {
            let mut entry =
                json!({"type": "file", "oid": git(&file.content), "size": file.content.len(), "path": path});
            if file.lfs {
                let oid = Digest::of(&file.content).hex();
                entry["oid"] = json!("2222222222222222222222222222222222222222");
                entry["lfs"] = json!({"oid": oid, "size": file.content.len(), "pointerSize": 134});
            }
            entries.push(entry);
        }
        entries
    }
}

pub(crate) fn git(content: &[u8]) -> String {
    let mut sha1 = Sha1::new_with_prefix(format!("blob {}\0", content.len()));
    sha1.update(content);
    hex::encode(sha1.finalize())
}

/// The hub, and the store with its large files.
pub(crate) struct Hub {
    pub(crate) api: Server,
    pub(crate) store: Server,
}

impl Hub {
    pub(crate) async fn start(repository: Repository) -> Self {
        let repository = Arc::new(repository);
        let large = Arc::clone(&repository);
        // The client sends the hub's requests also to a redirect on the same host, so the store needs another host.
        let store = Server::elsewhere(move |request, _| {
            let digest = request
                .path
                .trim_start_matches('/')
                .split('?')
                .next()
                .unwrap_or_default();
            let found = large
                .files
                .values()
                .find(|file| Digest::of(&file.content).hex() == digest);
            found.map_or_else(
                || answer("404 Not Found", &[], b""),
                |found| without_body_for_head(request, file(request, &format!("\"{digest}\""), found.sent())),
            )
        })
        .await;
        let store_url = store.url("");
        let api = Server::start(move |request, _| {
            without_body_for_head(request, serve(&repository, request, &store_url))
        })
        .await;
        Self { api, store }
    }
}

fn without_body_for_head(request: &Request, mut reply: Reply) -> Reply {
    if let (true, Some(Step::Bytes(bytes))) = (request.method == "HEAD", reply.first_mut())
        && let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n")
    {
        bytes.truncate(end + 4);
    }
    reply
}

fn serve(repository: &Repository, request: &Request, store: &str) -> Reply {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let authorized = format!("Bearer {TOKEN}");
    if repository.gated && request.header("authorization") != Some(&authorized) {
        return answer(
            "401 Unauthorized",
            &[("X-Error-Code", "GatedRepo")],
            b"{\"error\":\"gated\"}",
        );
    }
    let api = format!("/api/{}/{}", repository.kind, repository.name);
    if let Some(rest) = path.strip_prefix(&api) {
        return match rest {
            "/revision/main" | "/revision/refs%2Fpr%2F1" => {
                let info = json!({"_id": "x", "id": repository.name, "modelId": repository.name, "author": "owner",
                    "sha": COMMIT, "private": false, "siblings": [], "tags": []});
                answer(
                    "200 OK",
                    &[("Content-Type", "application/json")],
                    info.to_string().as_bytes(),
                )
            }
            _ if rest == format!("/revision/{COMMIT}") => answer(
                "200 OK",
                &[],
                json!({"id": repository.name, "sha": COMMIT, "private": false, "tags": []})
                    .to_string()
                    .as_bytes(),
            ),
            _ if rest == format!("/tree/{COMMIT}") => tree(repository, request, query),
            _ => answer(
                "404 Not Found",
                &[("X-Error-Code", "RevisionNotFound")],
                b"{\"error\":\"no\"}",
            ),
        };
    }
    let resolve = format!("/{}{}/resolve/{COMMIT}/", repository.prefix(), repository.name);
    let Some(name) = path.strip_prefix(&resolve) else {
        return answer(
            "404 Not Found",
            &[("X-Error-Code", "RepoNotFound")],
            b"{\"error\":\"no\"}",
        );
    };
    let Some(found) = repository.files.get(unescaped(name).as_str()) else {
        return answer(
            "404 Not Found",
            &[("X-Error-Code", "EntryNotFound"), ("X-Repo-Commit", COMMIT)],
            b"",
        );
    };
    if !found.lfs {
        let etag = format!("\"{}\"", git(&found.content));
        let mut headers = vec![
            ("X-Repo-Commit", COMMIT),
            ("ETag", etag.as_str()),
            ("Accept-Ranges", "bytes"),
        ];
        headers.push(("Content-Disposition", "inline"));
        return answer("200 OK", &headers, found.sent());
    }
    let digest = Digest::of(&found.content).hex();
    let (etag, len) = (format!("\"{digest}\""), found.content.len().to_string());
    let location = format!("{store}/{digest}?Signature=x");
    let headers = [
        ("X-Repo-Commit", COMMIT),
        ("X-Linked-Etag", &etag),
        ("X-Linked-Size", &len),
        ("Location", &location),
        ("Content-Length", "0"),
    ];
    vec![Step::Bytes(head("302 Found", &headers))]
}

fn tree(repository: &Repository, request: &Request, query: &str) -> Reply {
    let cursor = query.split('&').find_map(|pair| pair.strip_prefix("cursor="));
    let from: usize = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let entries = repository.entries();
    let page: Vec<_> = entries.iter().skip(from).take(PAGE).collect();
    let host = request.header("host").unwrap_or_default();
    let path = request.path.split('?').next().unwrap_or_default();
    let next = format!(
        "<http://{host}{path}?recursive=true&cursor={}>; rel=\"next\"",
        from + PAGE
    );
    let mut headers = vec![("Content-Type", "application/json")];
    if from + PAGE < entries.len() {
        headers.push(("Link", &next));
    }
    answer(
        "200 OK",
        &headers,
        serde_json::to_string(&page).unwrap().as_bytes(),
    )
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            bytes.extend(hex::decode(&after[..2]).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).unwrap()
}
