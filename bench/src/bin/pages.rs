//! The facilitator's web pages against its own REST API: the bytes of the first load, the time to the first byte of the
//! list of 100,000 jobs, and the memory of 1,000 browsers that watch one job.
//!
//! Each server is a process of its own on SQLite; the requests come from this one. `MUSTER_BENCH_LISTED` and
//! `MUSTER_BENCH_WATCHERS` make it small.

use std::path::Path;

use anyhow::{Context as _, ensure};
use muster_bench::facilitator_server::{self, FacilitatorServer, clocked};
use muster_bench::{Direction, Report, Row, Turns};
use muster_process::{Clock as _, SystemClock};
use muster_protocol::account_api::WebLink;
use reqwest::header::{COOKIE, HeaderMap, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method};

const ROUNDS: usize = 40;
const MEMORY_ROUNDS: usize = 3;
const LISTED: u64 = 100_000;
const WATCHERS: u64 = 1_000;
/// The jobs on a page of the list.
const PAGE: u64 = 25;

fn main() -> anyhow::Result<()> {
    facilitator_server::run(measure)
}

async fn measure() -> anyhow::Result<()> {
    let listed = number("MUSTER_BENCH_LISTED").unwrap_or(LISTED);
    let watchers = usize::try_from(number("MUSTER_BENCH_WATCHERS").unwrap_or(WATCHERS))?;
    let folder = tempfile::tempdir()?;
    let mut report = Report::default();
    let server = start(folder.path(), "list").await?;
    server.seed(listed).await?;
    let browser = SignedInBrowser::open(&server).await?;
    report.rows.push(browser.weigh(&server).await?);
    report.rows.push(browser.list(&server, listed).await?);
    drop(server);
    report.rows.extend(watch(folder.path(), watchers).await?);
    report.notes = vec![
        format!(
            "the list: {PAGE} jobs of {listed}, {ROUNDS} rounds in turns, each on a connection of its own; the API is asked for the same {PAGE}"
        ),
        format!(
            "watchers: each loads the job's page and opens its events, on a connection of its own; the first peer opens the same events of the \
             API and nothing else, as `bench facilitator` does, and the second reads the job by the API before; {MEMORY_ROUNDS} rounds, each \
             with a fresh process for each side"
        ),
    ];
    report.print()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

async fn start(folder: &Path, name: &str) -> anyhow::Result<FacilitatorServer> {
    let store = format!("sqlite:{}", folder.join(format!("{name}.db")).display());
    FacilitatorServer::start(folder, name, &store).await
}

/// A browser with a session.
struct SignedInBrowser {
    cookie: String,
}

impl SignedInBrowser {
    /// Signs in with a link, as `muster login --web` and a press of the button do.
    async fn open(server: &FacilitatorServer) -> anyhow::Result<Self> {
        let http = Client::builder().redirect(Policy::none()).build()?;
        let drawn = server
            .asked(&http, Method::POST, "/api/v1/web-links/")
            .send()
            .await?;
        let WebLink { url, .. } = drawn.error_for_status()?.json().await?;
        let (_, secret) = url.rsplit_once('=').context("the link has no secret")?;
        let page = http.get(&url).send().await?.error_for_status()?;
        let visit = cookies(page.headers());
        let text = page.text().await?;
        let (_, rest) = text
            .split_once("name=\"form_token\" value=\"")
            .context("the form has no token")?;
        let token = rest.split('"').next().unwrap_or_default();
        let answer = http
            .post(server.url("/sign-in/link"))
            .header(COOKIE, visit)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!("form_token={token}&link={secret}"))
            .send()
            .await?;
        ensure!(answer.status() == 303, "the sign-in failed: {}", answer.status());
        let cookie = cookies(answer.headers());
        ensure!(!cookie.is_empty(), "the sign-in gave no session");
        Ok(Self { cookie })
    }

    fn get(&self, http: &Client, url: String) -> reqwest::RequestBuilder {
        http.get(url)
            .header(COOKIE, &self.cookie)
            .header("accept", "text/html")
    }

    /// The bytes of the first load: the overview, and all that it names, with their headers and uncompressed.
    async fn weigh(&self, server: &FacilitatorServer) -> anyhow::Result<Row> {
        let http = Client::new();
        let (mut bytes, text) = read(self.get(&http, server.url("/"))).await?;
        let mut named = 0;
        for part in text.split("=\"/assets/").skip(1) {
            let name = part.split('"').next().unwrap_or_default();
            bytes += read(self.get(&http, server.url(&format!("/assets/{name}"))))
                .await?
                .0;
            named += 1;
        }
        ensure!(named == 3, "the page names {named} files");
        let what = "first load: overview, styles, script and icon, with headers";
        Ok(Row::alone(what, "KB", Direction::LowerIsBetter, vec![bytes / 1_000.0]).target(150.0))
    }

    /// The time to the first byte of the first page of the list, and of the API's list of the same jobs.
    async fn list(&self, server: &FacilitatorServer, listed: u64) -> anyhow::Result<Row> {
        let mut turns = Turns::default();
        for round in 0..=ROUNDS {
            let page = first_byte(self.get(&Client::new(), server.url("/jobs"))).await?;
            let path = format!("/api/v1/jobs/?page=1&page_size={PAGE}");
            let api = first_byte(server.asked(&Client::new(), Method::GET, &path)).await?;
            if round > 0 {
                turns.ours.push(page);
                turns.peer.push(api);
            }
        }
        let what = format!("first byte of the page of the list, {listed} jobs");
        let row = Row::against(&what, "ms", Direction::LowerIsBetter, "the API's list", turns);
        Ok(row.target(1.2))
    }
}

/// The memory of browsers that watch one job; beside it that of as many clients of the API that only open the job's
/// events, and of as many that read the job first, as a browser does.
async fn watch(folder: &Path, watchers: usize) -> anyhow::Result<[Row; 2]> {
    let (mut pages, mut events, mut readers) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..MEMORY_ROUNDS {
        let server = start(folder, &format!("pages-{round}")).await?;
        create_job(&server).await?;
        let browser = SignedInBrowser::open(&server).await?;
        let job = server.newest_job().await?;
        pages.push(watch_page(&server, &browser, &job, watchers).await?);
        drop(server);
        let server = start(folder, &format!("events-{round}")).await?;
        create_job(&server).await?;
        events.push(server.watch(watchers).await?);
        drop(server);
        let server = start(folder, &format!("readers-{round}")).await?;
        create_job(&server).await?;
        readers.push(server.read_and_watch(watchers).await?);
    }
    let what = format!("memory of {watchers} watchers of one job's page");
    let row = |name, peer| {
        let turns = Turns {
            ours: pages.clone(),
            peer,
        };
        Row::against(&what, "MiB", Direction::LowerIsBetter, name, turns).target(1.0)
    };
    Ok([
        row("watchers of the API's events", events),
        row("clients of the API that read the job, then watch", readers),
    ])
}

/// Creates the job that is watched.
async fn create_job(server: &FacilitatorServer) -> anyhow::Result<()> {
    let now = SystemClock::new().now().micros() * 1_000;
    let answer = server.job_request(&Client::new(), now)?.send().await?;
    ensure!(answer.status() == 201, "no job is created: {}", answer.status());
    Ok(())
}

/// MiB by which the server grows.
async fn watch_page(
    server: &FacilitatorServer,
    browser: &SignedInBrowser,
    job: &str,
    watchers: usize,
) -> anyhow::Result<f64> {
    let before = server.server.memory()?;
    let mut open = Vec::new();
    for _ in 0..watchers {
        let http = Client::new();
        read(browser.get(&http, server.url(&format!("/jobs/{job}")))).await?;
        let events = browser.get(&http, server.url(&format!("/jobs/{job}/events")));
        let mut answer = events.send().await?.error_for_status()?;
        answer.chunk().await?.context("no event")?;
        open.push(answer);
    }
    Ok(server.server.memory()? - before)
}

/// Milliseconds until the head of the answer is there.
async fn first_byte(request: reqwest::RequestBuilder) -> anyhow::Result<f64> {
    let (answer, spent) = clocked(async { Ok(request.send().await?.error_for_status()?) }).await?;
    // The rest is read, so that the next request does not wait for it.
    answer.bytes().await?;
    Ok(spent)
}

/// The bytes of an answer with its head, and its text.
async fn read(request: reqwest::RequestBuilder) -> anyhow::Result<(f64, String)> {
    let answer = request.send().await?.error_for_status()?;
    // A line of the status, a colon, a space and an end of line for each header, and an empty line.
    let headers = answer.headers().iter();
    let head: usize = headers
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    let text = answer.text().await?;
    #[expect(clippy::cast_precision_loss, reason = "a page is small")]
    let bytes = (17 + head + 2 + text.len()) as f64;
    Ok((bytes, text))
}

/// The cookies that an answer sets, as a request sends them.
fn cookies(headers: &HeaderMap) -> String {
    let set = headers.get_all(SET_COOKIE).iter();
    let pairs = set.filter_map(|set| set.to_str().ok()?.split(';').next());
    pairs.collect::<Vec<_>>().join("; ")
}
