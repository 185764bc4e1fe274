//! A port with TLS, dialled by reqwest.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::service::service_fn;
use muster_process::certificate::{SelfSigned, make_self_signed};
use muster_process::{Tasks, TestClock};
use tokio::net::TcpListener;

use super::*;
use crate::server::{HttpSettings, Server, serve};

/// A certificate for 127.0.0.1 in files.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    /// Writes a new certificate, and returns it.
    fn renew(&self) -> reqwest::Certificate {
        let SelfSigned { identity, pem } = make_self_signed(&["127.0.0.1".to_owned()]).unwrap();
        let key = muster_process::certificate::key_pem(&identity.key).unwrap();
        std::fs::write(self.settings(false).certificate, &pem).unwrap();
        std::fs::write(self.settings(false).key, key).unwrap();
        reqwest::Certificate::from_pem(pem.as_bytes()).unwrap()
    }

    fn settings(&self, allow_plain: bool) -> TlsFiles {
        TlsFiles {
            certificate: self.folder.path().join("certificate.pem"),
            key: self.folder.path().join("key.pem"),
            allow_plain,
        }
    }
}

/// A server that reports whether a request came over TLS.
async fn start(files: &TlsFiles, clock: &TestClock) -> (SocketAddr, Tasks) {
    let tasks = Tasks::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let clock: SharedClock = Arc::new(clock.clone());
    let settings = HttpSettings::default();
    let server = Server::new("test", &settings, tasks.clone(), clock, tasks.token());
    let server = server.with_tls_files(files).unwrap();
    let serving = serve(server, listener, |_| {
        service_fn(|request: Request<_>| async move {
            let IsEncrypted(is) = *request.extensions().get().unwrap();
            drop::<Request<_>>(request);
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(is.to_string())))
        })
    });
    tasks.spawn("server", serving);
    (address, tasks)
}

/// A client that trusts this certificate and no authority.
fn client(root: reqwest::Certificate) -> reqwest::Client {
    muster_process::tls::install_provider();
    reqwest::Client::builder().tls_certs_only([root]).build().unwrap()
}

async fn ask(client: &reqwest::Client, url: String) -> Result<(u16, String), reqwest::Error> {
    let answer = client.get(url).send().await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}

#[tokio::test]
async fn a_port_with_tls_serves_it_and_plain_http_only_where_that_is_allowed() {
    let files = Files::new();
    let root = files.renew();
    for (allow_plain, plain) in [(true, (200, "false")), (false, (426, "TLS only"))] {
        let (address, _tasks) = start(&files.settings(allow_plain), &TestClock::default()).await;
        let client = client(root.clone());
        let secure = ask(&client, format!("https://{address}/")).await.unwrap();
        assert_eq!(secure, (200, "true".to_owned()));
        let (status, body) = ask(&client, format!("http://{address}/")).await.unwrap();
        assert_eq!(status, plain.0);
        assert!(body.contains(plain.1), "{body}");
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not() {
    let files = Files::new();
    let old = client(files.renew());
    let clock = TestClock::default();
    let (address, _tasks) = start(&files.settings(false), &clock).await;
    let url = format!("https://{address}/");
    assert!(ask(&old, url.clone()).await.is_ok());
    std::fs::write(files.settings(false).certificate, "no certificate").unwrap();
    clock.wait_for_sleepers(1).await;
    clock.advance(LOOK_EVERY);
    clock.wait_for_sleepers(1).await;
    assert!(
        ask(&old, url.clone()).await.is_ok(),
        "the one before is served on"
    );
    let new = client(files.renew());
    muster_testbed::until("the renewed certificate is served", async || {
        clock.advance(LOOK_EVERY);
        ask(&new, url.clone()).await.ok().map(drop)
    })
    .await;
    // A connection that is open keeps its certificate; a new one does not.
    let again = client(files.renew());
    assert!(
        ask(&again, format!("https://{address}/")).await.is_err(),
        "not read yet"
    );
}

#[test]
fn a_certificate_without_its_key_is_no_setting() {
    let files = TlsFiles {
        certificate: "certificate.pem".into(),
        ..TlsFiles::default()
    };
    assert_eq!(files.problems("http.tls")[0].path, "http.tls.key");
    assert!(TlsFiles::default().problems("http.tls").is_empty());
    let missing = TlsFiles {
        key: "key.pem".into(),
        ..files
    };
    let error = missing.load().unwrap_err().to_string();
    assert!(
        error.contains("certificate.pem") && error.contains("http.tls.certificate"),
        "{error}"
    );
}
