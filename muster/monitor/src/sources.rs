//! The sources of a status: the facilitator in a user's name, or the status address of a validator or a miner.

use std::net::SocketAddr;
use std::time::Duration;

use muster_client::Client;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_process::operator_token::OperatorToken;
use muster_protocol::JobStatus;
use muster_protocol::rest::{ClassOffer as OfferView, JobView, SubnetCapacity};
use muster_terminal::job_text;
use reqwest::header::AUTHORIZATION;
use serde::de::DeserializeOwned;

use crate::board::{Board, ClassOffer, UserJob, UserStatus, ValidatorBoard};

/// How long a role may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Jobs that a user sees.
const JOBS: u32 = 100;
/// The most characters of a note.
const MAX_NOTE: usize = 300;

/// The thing that is watched.
pub enum StatusSource {
    /// The jobs of a user.
    User {
        /// A client that is logged in.
        client: Box<Client>,
        /// The name of its account.
        account: String,
    },
    /// A validator's status.
    Validator(RoleStatus),
    /// A miner's status.
    Miner(RoleStatus),
}

/// The status of a role at an address.
pub struct RoleStatus {
    client: reqwest::Client,
    address: SocketAddr,
    /// The value of `Authorization`; `None` where the address asks for none.
    authorization: Option<String>,
}

impl StatusSource {
    pub(crate) fn title(&self) -> String {
        match self {
            Self::User { .. } => "muster top · your jobs".to_owned(),
            Self::Validator(status) => format!("muster top · validator at {}", status.address),
            Self::Miner(status) => format!("muster top · miner at {}", status.address),
        }
    }

    /// Reads everything that the screen shows.
    ///
    /// # Errors
    /// The reason as text.
    pub(crate) async fn read(&self, clock: &SharedClock) -> Result<Board, String> {
        match self {
            Self::User { client, account } => read_user(client, account, clock).await,
            Self::Validator(status) => Ok(Board::Validator(Box::new(ValidatorBoard {
                status: status.read("/v0/state?limit=200").await?,
                queue: status.read("/v0/queue").await?,
                miners: status.read("/v0/miners").await?,
                // A validator without a gateway has no sessions.
                sessions: status.read("/v0/sessions?limit=50").await.unwrap_or_default(),
                batches: status.read("/v0/batches?limit=100").await?,
                // A validator of an earlier release has none.
                audits: status.read("/v0/audits?limit=100").await.unwrap_or_default(),
            }))),
            Self::Miner(status) => Ok(Board::Miner(Box::new(status.read("/v0/state").await?))),
        }
    }
}

impl RoleStatus {
    /// A reader of the status at `address`, which shows `token` if there is one.
    ///
    /// # Errors
    /// The HTTP client cannot be set up.
    pub fn new(address: SocketAddr, token: Option<&OperatorToken>) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: reqwest::Client::builder().timeout(PATIENCE).no_proxy().build()?,
            address,
            authorization: token.map(OperatorToken::authorization),
        })
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let url = format!("http://{}{path}", self.address);
        let mut asked = self.client.get(&url);
        if let Some(authorization) = &self.authorization {
            asked = asked.header(AUTHORIZATION, authorization);
        }
        let words = |error: reqwest::Error| Causes(&error).to_string();
        let answer = asked.send().await.map_err(words)?;
        let status = answer.status();
        if !status.is_success() {
            let told: serde_json::Value = answer.json().await.unwrap_or_default();
            let reason = told.get("error").and_then(serde_json::Value::as_str);
            return Err(reason.map_or_else(|| format!("{path}: {status}"), str::to_owned));
        }
        answer.json().await.map_err(words)
    }
}

async fn read_user(client: &Client, account: &str, clock: &SharedClock) -> Result<Board, String> {
    let words = |error: muster_client::ClientError| Causes(&error).to_string();
    let jobs = client.jobs(1, JOBS).await.map_err(words)?;
    // The offers are beside the point: without them the jobs are shown all the same.
    let offers = client
        .subnet()
        .await
        .map(|subnet| offers(&subnet))
        .unwrap_or_default();
    let now = clock.now();
    Ok(Board::User(UserStatus {
        account: account.to_owned(),
        facilitator: client.base().to_owned(),
        jobs: jobs
            .results
            .iter()
            .map(|view| {
                job(
                    view,
                    view.queue
                        .as_ref()
                        .map(|queued| job_text::short_place(queued, now)),
                )
            })
            .collect(),
        offers,
    }))
}

fn job(view: &JobView, place: Option<String>) -> UserJob {
    let status = view.last_status();
    let note = place.or_else(|| job_text::failure(view)).unwrap_or_default();
    UserJob {
        id: view.uuid.to_string(),
        image: view.docker_image.clone(),
        state: view.state().to_string(),
        ended: status.is_terminal(),
        completed: status == JobStatus::Completed,
        created_at: Some(view.created_at),
        changed_at: Some(view.last_update),
        note: note.chars().take(MAX_NOTE).collect(),
    }
}

fn offers(subnet: &SubnetCapacity) -> Vec<ClassOffer> {
    let classes = subnet.results.iter().flat_map(|validator| &validator.classes);
    let offer = |offer: &OfferView| ClassOffer {
        class: offer.class.to_string(),
        executors: offer.executors,
        free: offer.free,
        waiting: offer.waiting,
        wait: match offer.estimate_s {
            Some(0) => "starts now".to_owned(),
            Some(seconds) => job_text::wait(seconds),
            None => offer.why.clone(),
        },
    };
    classes.map(offer).collect()
}
