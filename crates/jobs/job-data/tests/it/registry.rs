//! A registry that is asked for a manifest: honest ones, and ones that lead elsewhere.

use std::sync::Arc;

use muster_http::addresses::AddressRules;
use muster_job_data::HttpError;
use muster_job_data::manifest_request::{RegistryAuth, RegistryClient, RegistryError, RegistryImage};
use muster_protocol::{Digest, ImageId};

use crate::server::{Reply, Step};
use crate::server::{Request, Server, answer, head};

fn manifest(size: u64) -> (String, Digest) {
    let config = Digest::of(b"config");
    let text = format!(
        r#"{{"schemaVersion":2,"config":{{"digest":"{config}","size":100}},"layers":[{{"digest":"{config}","size":{size}}}]}}"#
    );
    let digest = Digest::of(text.as_bytes());
    (text, digest)
}

/// Serves an image at the tag `1` and by its digest.
fn serve(request: &Request) -> Reply {
    let (text, digest) = manifest(900);
    if request.path == "/v2/a/b/manifests/1" || request.path == format!("/v2/a/b/manifests/{digest}") {
        answer("200 OK", &[], text.as_bytes())
    } else {
        answer("404 Not Found", &[], b"")
    }
}

async fn resolve(
    server: &Server,
    allow: &str,
    pin: &str,
    auth: &RegistryAuth,
) -> Result<RegistryImage, RegistryError> {
    let rules = AddressRules::parse(&[allow.to_owned()]).unwrap();
    let client = RegistryClient::new(&server.address.to_string(), Arc::new(rules));
    client.resolve("a/b", pin, auth).await
}

#[tokio::test]
async fn a_tag_and_a_digest_lead_to_the_same_image_and_its_size() {
    let server = Server::start(|request, _| serve(request)).await;
    let (_, digest) = manifest(900);
    let expected = RegistryImage {
        zstd: false,
        digest,
        images: vec![ImageId(Digest::of(b"config"))],
        bytes: 1_000,
    };
    for pin in ["1", &digest.to_string()] {
        let found = resolve(&server, "127.0.0.1", pin, &RegistryAuth::Anonymous).await;
        assert_eq!(found.unwrap(), expected, "{pin}");
    }
    let missing = resolve(&server, "127.0.0.1", "2", &RegistryAuth::Anonymous).await;
    assert!(matches!(missing, Err(RegistryError::NotFound(_))), "{missing:?}");
    let before = server.seen().len();
    let refused = resolve(&server, "127.0.0.2", "1", &RegistryAuth::Anonymous).await;
    assert!(
        matches!(refused, Err(RegistryError::Http(HttpError::Refused(_)))),
        "{refused:?}"
    );
    assert_eq!(server.seen().len(), before, "it was not asked");
}

#[tokio::test]
async fn a_token_comes_from_the_realm_and_a_realm_inside_gets_no_request() {
    let elsewhere = Server::elsewhere(|_, _| answer("200 OK", &[], br#"{"token":"t0"}"#)).await;
    let realm = format!("Bearer realm=\"{}\",service=\"s\"", elsewhere.url("/token"));
    let server = Server::start(move |request, _| match request.header("authorization") {
        Some("Bearer t0") => serve(request),
        _ => answer("401 Unauthorized", &[("WWW-Authenticate", &realm)], b""),
    })
    .await;
    let login = RegistryAuth::Password {
        username: "u".to_owned(),
        password: "p".to_owned(),
    };
    let refused = resolve(&server, "127.0.0.1", "1", &login).await;
    assert!(
        matches!(refused, Err(RegistryError::Http(HttpError::Refused(_)))),
        "{refused:?}"
    );
    assert_eq!(elsewhere.seen().len(), 0);
    resolve(&server, "127.0.0.0/8", "1", &login).await.unwrap();
    let asked = elsewhere.seen();
    assert_eq!(asked[0].path, "/token?service=s&scope=repository%3Aa%2Fb%3Apull");
    assert_eq!(asked[0].header("authorization"), Some("Basic dTpw"));
    let identity = RegistryAuth::Identity("i d".to_owned());
    resolve(&server, "127.0.0.0/8", "1", &identity).await.unwrap();
    let posted = elsewhere.seen().pop().unwrap();
    let body = String::from_utf8(posted.body).unwrap();
    assert!(
        posted.method == "POST" && body.ends_with("&refresh_token=i+d"),
        "{body}"
    );
}

#[tokio::test]
async fn a_login_is_shown_where_it_is_asked_for_and_a_refused_one_is_said() {
    let server = Server::start(|request, _| match request.header("authorization") {
        Some("Basic dTpw") => serve(request),
        _ => answer(
            "401 Unauthorized",
            &[("WWW-Authenticate", "Basic realm=\"x\"")],
            b"",
        ),
    })
    .await;
    let with = |password: &str| RegistryAuth::Password {
        username: "u".to_owned(),
        password: password.to_owned(),
    };
    resolve(&server, "127.0.0.1", "1", &with("p")).await.unwrap();
    assert_eq!(server.seen()[0].header("authorization"), None, "not before");
    for auth in [with("wrong"), RegistryAuth::Anonymous] {
        let refused = resolve(&server, "127.0.0.1", "1", &auth).await;
        assert!(
            matches!(refused, Err(RegistryError::Unauthorised(_))),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn redirects_inside_are_refused_for_manifests_and_for_blobs() {
    let inside = Server::elsewhere(|_, _| answer("200 OK", &[], b"{}")).await;
    for redirected in ["/manifests/", "/blobs/"] {
        let location = inside.url("/x");
        let server = Server::start(move |request, _| {
            if request.path.contains(redirected) {
                vec![Step::Bytes(head(
                    "307 Temporary Redirect",
                    &[("Location", &location), ("Content-Length", "0")],
                ))]
            } else {
                serve(request)
            }
        })
        .await;
        let refused = resolve(&server, "127.0.0.1", "1", &RegistryAuth::Anonymous).await;
        assert!(
            matches!(refused, Err(RegistryError::Http(HttpError::Refused(_)))),
            "{redirected}: {refused:?}"
        );
    }
    assert_eq!(inside.seen().len(), 0);
}

#[tokio::test]
async fn lies_and_endless_answers_end() {
    let (text, _) = manifest(1);
    let wrong = Digest::of(b"something else").to_string();
    let server = Server::start(move |_, _| answer("200 OK", &[], text.as_bytes())).await;
    let refused = resolve(&server, "127.0.0.1", &wrong, &RegistryAuth::Anonymous).await;
    assert!(matches!(refused, Err(RegistryError::BadDigest)), "{refused:?}");
    let block = vec![b' '; 64 << 10];
    let endless =
        Server::start(move |_, _| vec![Step::Bytes(head("200 OK", &[])), Step::Endless(block.clone())]).await;
    let refused = resolve(&endless, "127.0.0.1", "1", &RegistryAuth::Anonymous).await;
    assert!(
        matches!(refused, Err(RegistryError::Http(HttpError::TooLarge { .. }))),
        "{refused:?}"
    );
    let empty = Server::start(|_, _| answer("200 OK", &[], b"{}")).await;
    let refused = resolve(&empty, "127.0.0.1", "1", &RegistryAuth::Anonymous).await;
    assert!(matches!(refused, Err(RegistryError::Malformed(_))), "{refused:?}");
}
