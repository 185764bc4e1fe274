//! The router of the pages by which this validator shows its receipts, its statements of capacity with their evidence,
//! the statements that it has read of others, its scoring snapshots, and its bundles of audit evidence. They are
//! public: all of it is signed or content-addressed, and meant to be checked by others.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, Request, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use muster_chain::Epoch;
use muster_gateway::store::GatewayStore;
use muster_http::range::{ContentRange, RequestedRange, unsatisfied};
use muster_http::server::{self, ClientAddress, Server, TowerToHyperService};
use muster_process::connections::AddressGroup;
use muster_process::error::Causes;
use muster_protocol::Digest;
use muster_protocol::receipt::parse_page_name;
use muster_scoring::capacity_statements::{SeenDigest, SeenList, SignedStatement};
use muster_store::StoreError;
use muster_validator_store::Store;
use muster_verdict_exchange::{ExchangePages, page_routes};
use tokio::net::TcpListener;

use super::page_admission::{BUSY_SECS, Busy, PageAdmission};
use super::page_texts::{LINES_PER_PIECE, SHORT_BYTES, TextRest, TextSource};
use crate::validator_state::ValidatorState;

/// The state that the handlers of the pages share.
#[derive(Clone, Debug)]
struct PagesState {
    store: Arc<Store>,
    admission: PageAdmission,
    audits: ExchangePages,
}

/// Serves the pages until the validator stops.
pub(crate) async fn serve(state: Arc<ValidatorState>, listener: TcpListener) -> Result<(), StoreError> {
    let (tasks, clock) = (state.tasks.clone(), Arc::clone(&state.clock));
    let router = page_router(PagesState {
        store: Arc::clone(&state.store),
        admission: PageAdmission::new(Arc::clone(&clock)),
        audits: audit_pages(&state),
    });
    let service = TowerToHyperService::new(router);
    let stop = tasks.token();
    let server = Server::new("pages", &state.config.http, tasks, clock, stop);
    server::serve(server, listener, move |_| service.clone()).await;
    Ok(())
}

fn audit_pages(state: &Arc<ValidatorState>) -> ExchangePages {
    let log = GatewayStore::new(state.store.pool(), state.store.writer());
    ExchangePages {
        keypair: state.keypair.clone(),
        netuid: state.config.chain.netuid.0,
        store: Arc::clone(&state.store),
        newest_header: Arc::new(move || {
            let log = log.clone();
            Box::pin(async move { Ok(log.last_bucket().await?.map(|bucket| bucket.header)) })
        }),
        clock: Arc::clone(&state.clock),
    }
}

fn page_router(state: PagesState) -> Router {
    let pace = middleware::from_fn_with_state(state.clone(), pace_address);
    Router::new()
        .merge(page_routes(state.audits.clone()))
        .route("/receipts/{page}", get(receipts))
        .route("/capacity/{cycle}", get(statement))
        .route("/capacity-evidence/{digest}", get(evidence))
        .route("/capacity-seen/{cycle}", get(seen_statements))
        .route("/capacity-statements/{digest}", get(seen_statement))
        .route("/scoring-snapshots/{digest}", get(snapshot))
        .layer(pace)
        .with_state(state)
}

/// The addresses that count as the client's.
fn client_group(client: Option<Extension<ClientAddress>>) -> AddressGroup {
    let nobody = ClientAddress(IpAddr::from([0, 0, 0, 0]));
    AddressGroup::of(client.map_or(nobody, |Extension(client)| client).0)
}

async fn pace_address(
    State(state): State<PagesState>,
    client: Option<Extension<ClientAddress>>,
    request: Request,
    next: Next,
) -> Response {
    match state.admission.count(client_group(client)) {
        Ok(()) => next.run(request).await,
        Err(wait) => {
            let wait = [(RETRY_AFTER, wait.as_secs().saturating_add(1))];
            (StatusCode::TOO_MANY_REQUESTS, wait).into_response()
        }
    }
}

async fn receipts(
    State(state): State<PagesState>,
    client: Option<Extension<ClientAddress>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Some(page) = parse_page_name(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let asked = headers.get(RANGE).and_then(|range| range.to_str().ok());
    // Readers ask for a page from some byte on. The end that they name is not needed: whole lines are answered.
    let from = match RequestedRange::parse(asked, u64::MAX) {
        RequestedRange::Whole | RequestedRange::Unsatisfiable => 0,
        RequestedRange::Part { first, .. } => first,
    };
    let part = match state.store.receipt_page(page, from, LINES_PER_PIECE).await {
        Ok(Some(part)) => part,
        Ok(None) => return StatusCode::NOT_FOUND.into_response(),
        Err(error) => return unreadable(&error),
    };
    let size = part.size;
    if part.lines.is_empty() {
        let range = [(CONTENT_RANGE, unsatisfied(size))];
        return (StatusCode::RANGE_NOT_SATISFIABLE, range).into_response();
    }
    let skipped = usize::try_from(from.saturating_sub(part.first)).unwrap_or(usize::MAX);
    let Some(first) = part.lines.get(skipped..).map(str::to_owned) else {
        // The byte lies within a letter of a line: nobody who reads whole lines asks for it.
        return StatusCode::BAD_REQUEST.into_response();
    };
    let source = TextSource::Receipts(page);
    let body = match state.body_of(source, from, size, first, client).await {
        Ok(body) => body,
        Err(Busy) => return busy(),
    };
    let kind = [(CONTENT_TYPE, "application/jsonl"), (ACCEPT_RANGES, "bytes")];
    let length = [(CONTENT_LENGTH, size.saturating_sub(from))];
    if from == 0 {
        return (kind, length, body).into_response();
    }
    let range = [(CONTENT_RANGE, ContentRange::of_part(from, size, size).to_string())];
    (StatusCode::PARTIAL_CONTENT, kind, length, range, body).into_response()
}

async fn statement(State(state): State<PagesState>, Path(cycle): Path<u64>) -> Response {
    let read = state
        .store
        .statement_of(state.audits.validator(), Epoch(cycle))
        .await;
    json_text(read)
}

async fn evidence(State(state): State<PagesState>, Path(digest): Path<Digest>) -> Response {
    json_text(state.store.evidence(digest).await)
}

/// The statements for a cycle that this validator has read. 404 if it has read none.
async fn seen_statements(State(state): State<PagesState>, Path(cycle): Path<u64>) -> Response {
    let listed = state.store.sightings_in(Epoch(cycle)).await.map(|sightings| {
        let digests = sightings.iter().filter_map(|seen| {
            let statement: SignedStatement = serde_json::from_str(&seen.body).ok()?;
            Some(SeenDigest::of(&statement))
        });
        let statements: Vec<_> = digests.collect();
        (!statements.is_empty()).then(|| SeenList { statements }.to_text())
    });
    json_text(listed)
}

async fn seen_statement(State(state): State<PagesState>, Path(digest): Path<Digest>) -> Response {
    json_text(state.store.sighting(digest).await)
}

async fn snapshot(
    State(state): State<PagesState>,
    client: Option<Extension<ClientAddress>>,
    Path(digest): Path<Digest>,
) -> Response {
    let size = match state.store.scoring_snapshot_length(digest).await {
        Ok(Some(size)) => size,
        Ok(None) => return StatusCode::NOT_FOUND.into_response(),
        Err(error) => return unreadable(&error),
    };
    // A short one is read at once; of a long one, nothing before its turn.
    let first = if size <= SHORT_BYTES {
        match state.store.snapshot_piece(digest, 0).await {
            Ok(Some(first)) => first,
            Ok(None) => return StatusCode::NOT_FOUND.into_response(),
            Err(error) => return unreadable(&error),
        }
    } else {
        String::new()
    };
    let source = TextSource::Snapshot { digest, piece: 0 };
    let body = match state.body_of(source, 0, size, first, client).await {
        Ok(body) => body,
        Err(Busy) => return busy(),
    };
    let kind = [(CONTENT_TYPE, "application/json")];
    (kind, [(CONTENT_LENGTH, size)], body).into_response()
}

impl PagesState {
    /// The body of a text's bytes from `from` to `end`, of which `first` is read already. If that is not all, the body
    /// has one of the turns of long texts.
    async fn body_of(
        &self,
        source: TextSource,
        from: u64,
        end: u64,
        first: String,
        client: Option<Extension<ClientAddress>>,
    ) -> Result<Body, Busy> {
        let read = u64::try_from(first.len()).unwrap_or(u64::MAX);
        let rest = TextRest {
            store: Arc::clone(&self.store),
            source,
            at: from.saturating_add(read),
            end,
        };
        if rest.is_empty() {
            return Ok(Body::from(first));
        }
        let turn = self.admission.take_turn(client_group(client)).await?;
        Ok(rest.into_body(first, turn))
    }
}

fn busy() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, BUSY_SECS)]).into_response()
}

fn json_text(read: Result<Option<String>, StoreError>) -> Response {
    match read {
        Ok(Some(text)) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => unreadable(&error),
    }
}

fn unreadable(error: &StoreError) -> Response {
    tracing::error!(error = %Causes(error), "a page could not be read from the store");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use muster_http::server::HttpSettings;
    use muster_identity::Keypair;
    use muster_process::{Tasks, TestClock};
    use muster_store::testing::{TestStore, stores};
    use muster_testbed::within;
    use muster_validator_store::MIGRATIONS;
    use reqwest::Client;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};

    /// The number of the page that the tests fill.
    const PAGE: i64 = 9;
    /// Bytes of a piece of a snapshot.
    const PIECE: usize = 512 * 1024;

    struct Pages {
        test: TestStore,
        clock: TestClock,
        address: SocketAddr,
        tasks: Tasks,
    }

    impl Pages {
        async fn all() -> Vec<Self> {
            muster_process::tls::install_provider();
            let mut all = Vec::new();
            for test in stores(&MIGRATIONS).await.unwrap() {
                let (tasks, clock) = (Tasks::new(), TestClock::default());
                let store = Arc::new(Store::open(&test.url).await.unwrap());
                let router = page_router(PagesState {
                    store: Arc::clone(&store),
                    admission: PageAdmission::new(Arc::new(clock.clone())),
                    audits: ExchangePages {
                        keypair: Keypair::from_seed([7; 32]),
                        netuid: 1,
                        store,
                        newest_header: Arc::new(|| Box::pin(async { Ok(None) })),
                        clock: Arc::new(clock.clone()),
                    },
                });
                let service = TowerToHyperService::new(router);
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let settings = HttpSettings::default();
                let shared = Arc::new(clock.clone());
                let server = Server::new("pages", &settings, tasks.clone(), shared, tasks.token());
                tasks.spawn("serve", server::serve(server, listener, move |_| service.clone()));
                all.push(Self {
                    test,
                    clock,
                    address,
                    tasks,
                });
            }
            all
        }

        /// Stores a snapshot of this length; returns its path.
        async fn add_snapshot(&self, bytes: usize) -> (String, String) {
            let body = "0123456789abcdef".repeat(bytes / 16);
            let digest = Digest::of(body.as_bytes()).to_string();
            let (first, mut rest) = body.split_at(body.len().min(PIECE));
            sqlx::query("INSERT INTO scoring_snapshots (digest, body) VALUES ($1, $2)")
                .bind(digest.clone())
                .bind(first.to_owned())
                .execute(&self.test.pool)
                .await
                .unwrap();
            for number in 1_i64.. {
                let (piece, further) = rest.split_at(rest.len().min(PIECE));
                if piece.is_empty() {
                    break;
                }
                sqlx::query("INSERT INTO scoring_snapshot_pieces (digest, piece, body) VALUES ($1, $2, $3)")
                    .bind(digest.clone())
                    .bind(number)
                    .bind(piece.to_owned())
                    .execute(&self.test.pool)
                    .await
                    .unwrap();
                rest = further;
            }
            (format!("/scoring-snapshots/{digest}"), body)
        }

        /// A connection of a client at `127.0.0.{last}` that asks for a text and reads no more than the head.
        async fn ask(&self, last: u8, path: &str) -> (TcpStream, String) {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
            let mut stream = socket.connect(self.address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: v\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(within("a head", stream.read_u8()).await.unwrap());
            }
            (stream, String::from_utf8(head).unwrap())
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            self.tasks.shutdown();
        }
    }

    async fn read_to_end(mut stream: TcpStream) -> usize {
        let mut body = Vec::new();
        let _ = within("the end", stream.read_to_end(&mut body)).await;
        body.len()
    }

    #[tokio::test]
    async fn a_receipt_page_of_many_pieces_arrives_whole_and_from_any_line_on() {
        for pages in Pages::all().await {
            let mut lines = Vec::new();
            let mut size = 0;
            for number in 0..1_000 {
                let line = format!("{{\"number\":{number},\"text\":\"é\"}}\n");
                sqlx::query("INSERT INTO receipt_lines (page, first, length, line) VALUES ($1, $2, $3, $4)")
                    .bind(PAGE)
                    .bind(size)
                    .bind(line.len() as i64)
                    .bind(line.clone())
                    .execute(&pages.test.pool)
                    .await
                    .unwrap();
                size += line.len() as i64;
                lines.push(line);
            }
            let url = format!("http://{}/receipts/{PAGE}.jsonl", pages.address);
            let whole = Client::new().get(&url).send().await.unwrap();
            assert_eq!(whole.status(), 200);
            assert_eq!(whole.content_length(), Some(size as u64));
            assert_eq!(whole.text().await.unwrap(), lines.concat());
            for skipped in [1, 500, 990, 999, 1_000] {
                let from = lines[..skipped].concat().len();
                let request = Client::new().get(&url).header("range", format!("bytes={from}-"));
                let rest = request.send().await.unwrap();
                if skipped == 1_000 {
                    assert_eq!(rest.status(), 416);
                    continue;
                }
                assert_eq!(rest.status(), 206);
                let range = rest.headers()["content-range"].to_str().unwrap().to_owned();
                assert_eq!(range, format!("bytes {from}-{}/{size}", size - 1));
                assert_eq!(rest.text().await.unwrap(), lines[skipped..].concat());
            }
        }
    }

    #[tokio::test]
    async fn a_snapshot_arrives_whole_and_is_read_while_it_is_sent() {
        for pages in Pages::all().await {
            for bytes in [16, 65_536, 65_552, 1 << 20, 3_000_000] {
                let (path, body) = pages.add_snapshot(bytes).await;
                let url = format!("http://{}{path}", pages.address);
                let read = Client::new().get(&url).send().await.unwrap();
                assert_eq!(read.content_length(), Some(bytes as u64));
                assert_eq!(read.text().await.unwrap(), body);
            }
            // More than the buffers of a connection hold.
            let (path, body) = pages.add_snapshot(32 << 20).await;
            let (stream, head) = pages.ask(1, &path).await;
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            for table in ["scoring_snapshots", "scoring_snapshot_pieces"] {
                sqlx::query(sqlx::AssertSqlSafe(format!("DELETE FROM {table}")))
                    .execute(&pages.test.pool)
                    .await
                    .unwrap();
            }
            assert!(read_to_end(stream).await < body.len(), "it was read beforehand");
        }
    }

    #[tokio::test]
    async fn two_long_texts_are_sent_at_a_time_and_slow_readers_lose_their_turn() {
        for pages in Pages::all().await {
            let (path, body) = pages.add_snapshot(32 << 20).await;
            let (first, head) = pages.ask(1, &path).await;
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            let (_, head) = pages.ask(1, &path).await;
            assert!(head.starts_with("HTTP/1.1 503"), "one for each address: {head}");
            let (second, head) = pages.ask(2, &path).await;
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            let waits = async {
                pages.clock.wait_for_sleepers(1).await;
                pages.clock.advance(Duration::from_secs(2));
            };
            let ((_, head), ()) = tokio::join!(pages.ask(3, &path), waits);
            assert!(head.starts_with("HTTP/1.1 503"), "{head}");
            assert!(head.contains("retry-after: 5"), "{head}");
            // A short text needs no turn.
            let (short, _) = pages.add_snapshot(16).await;
            let (_, head) = pages.ask(3, &short).await;
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");

            pages.clock.advance(Duration::from_secs(60));
            for slow in [first, second] {
                assert!(read_to_end(slow).await < body.len());
            }
            let (third, head) = pages.ask(3, &path).await;
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            assert_eq!(read_to_end(third).await, body.len());
        }
    }

    #[tokio::test]
    async fn an_address_that_asks_too_often_gets_429_with_the_time_to_wait() {
        for pages in Pages::all().await {
            let client = Client::new();
            let url = format!("http://{}/receipts/1.jsonl", pages.address);
            for _ in 0..1_200 {
                assert_eq!(client.get(&url).send().await.unwrap().status(), 404);
            }
            let refused = client.get(&url).send().await.unwrap();
            assert_eq!(refused.status(), 429);
            assert_eq!(refused.headers()["retry-after"], "1");
            let (_, head) = pages.ask(2, "/receipts/1.jsonl").await;
            assert!(head.starts_with("HTTP/1.1 404"), "{head}");
        }
    }
}
