//! One sealed session as its gateway holds it: the connection, the attestation, and the ledger of its proofs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use muster_process::certificate::digest_of_pem;
use muster_process::error::Causes;
use muster_process::tls::TlsIdentity;
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::miner::StreamingJobReady;
use muster_protocol::{AttemptId, Digest, ExecutorClass, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{Bounds, Envelope, Forgery, HashScheme, Ledger, Nonce, ResponseProof, SessionId};
use muster_sealing_proxy::headers::{CLIENT, CLIENT_NONCE, GATEWAY_NONCE};
use muster_sealing_proxy::{
    Arriving, Asked, BESIDE, Checked, CheckedBody, ClientError, Limits, Peer, SealedClient, Unproven,
};
use muster_session_pool::{OrderedSession, Service};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Waits between two looks for a proof that did not come with its answer: the session signs once it has noticed that its
/// client is gone.
const LOOKS: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(3),
];
/// The most that a health check may answer.
const MAX_HEALTH: usize = 64 * 1024;
/// How long it may take.
const HEALTH_PATIENCE: Duration = Duration::from_secs(10);

/// What is asked of a session.
#[derive(Clone, Debug)]
pub struct Question {
    /// As in HTTP.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// The body.
    pub body: Bytes,
    /// For whom.
    pub client: Option<Digest>,
    /// Drawn by whoever it is for.
    pub client_nonce: Option<Nonce>,
    /// Drawn here: [`draw`].
    pub gateway_nonce: Nonce,
}

/// Who is told what was seen of an answer.
pub type Report = Box<dyn FnOnce(Checked) + Send>;

/// An answer on its way, and what was seen of it once it is over.
pub struct Answer {
    /// What it answers.
    pub asked: Asked,
    /// As it comes.
    pub response: Response<CheckedBody<Arriving, Report>>,
    /// What was seen, once it has come.
    pub seen: oneshot::Receiver<Checked>,
}

/// One sealed session.
#[derive(Debug)]
pub struct Line {
    pub(crate) session: SessionId,
    pub(crate) job: JobId,
    pub(crate) miner: MinerKey,
    pub(crate) service: Service,
    /// The miner's word for it: the text form of the envelope.
    pub attestation: String,
    pub(crate) until: Timestamp,
    client: SealedClient,
    scheme: HashScheme,
    bounds: Bounds,
    clock: SharedClock,
    book: Mutex<Numbers>,
    /// Answers that are being passed on.
    under_way: TaskTracker,
    /// This side ends it: what does not answer any longer is then nobody's fault.
    ending: AtomicBool,
}

#[derive(Debug)]
struct Numbers {
    ledger: Ledger,
    /// Its last word, in text form, if its miner has passed one on.
    heard: Option<String>,
    /// The number after the highest that was proven.
    next: u64,
}

/// What is known on this side when a session is opened.
#[derive(Debug)]
pub struct Opening<'a> {
    /// Who opens it.
    pub me: ValidatorKey,
    /// The job that it is.
    pub job: JobId,
    /// What was to run.
    pub service: &'a Service,
    /// The one client that it lets in.
    pub identity: &'a TlsIdentity,
    /// When its job ends whatever happens.
    pub until: Timestamp,
    /// By how much clocks may differ.
    pub skew: Duration,
    /// The time.
    pub clock: &'a SharedClock,
    /// Who runs its connections.
    pub tasks: &'a Tasks,
}

impl Line {
    /// Connects to where a miner says that its job answers, and takes it for a session only if everything that the miner
    /// attests is what was asked for, and its clock and the health of its service are well.
    ///
    /// # Errors
    /// Why it is none, in words for logs and for those who wait.
    pub async fn open(
        opening: &Opening<'_>,
        miner: MinerKey,
        ready: StreamingJobReady,
    ) -> Result<Self, String> {
        let ready = muster_identity::verify_streaming_ready(ready, miner)
            .map_err(|error| format!("the miner did not sign where its job answers: {error}"))?
            .into_inner();
        let certificate = digest_of_pem(&ready.public_key).map_err(|error| error.to_string())?;
        let host = ready.ip.unwrap_or_default();
        let address = if host.contains(':') {
            format!("[{host}]:{}", ready.port)
        } else {
            format!("{host}:{}", ready.port)
        };
        let client = SealedClient::new(
            Peer { address, certificate },
            opening.identity,
            &Limits::default(),
            opening.tasks,
        )
        .map_err(|error| format!("this gateway's own certificate cannot be used: {error}"))?;
        let cannot = |error: &ClientError| match error {
            ClientError::Connect(_) => {
                format!(
                    "its endpoint cannot be reached as it was attested: {}",
                    Causes(error)
                )
            }
            ClientError::Broken(_)
            | ClientError::Unsaid(_)
            | ClientError::Status(_)
            | ClientError::Statement(_) => {
                format!(
                    "the miner cannot seal, so no user is served there: {}",
                    Causes(error)
                )
            }
        };
        let envelope = client.attestation().await.map_err(|error| cannot(&error))?;
        let stated = envelope.statement().map_err(|error| error.to_string())?;
        if !muster_identity::verify(&stated.miner.0, envelope.signed_bytes(), envelope.signature()) {
            return Err("the miner named in the attestation did not sign it".to_owned());
        }
        let ordered = OrderedSession {
            miner,
            audience: opening.me,
            job: opening.job,
            attempt: ready.job_uuid,
            client_certificate: opening.identity.fingerprint(),
            server_certificate: certificate,
            service: opening.service,
        };
        ordered
            .check_attestation(&stated, opening.clock.now(), opening.skew)
            .map_err(|mismatch| mismatch.to_string())?;
        let ledger = Ledger::open(&envelope).map_err(|error| error.to_string())?;
        let line = Self {
            session: stated.session,
            job: opening.job,
            miner,
            service: opening.service.clone(),
            attestation: envelope.to_text(),
            until: stated.not_after.min(opening.until),
            client,
            scheme: stated.scheme,
            bounds: Bounds { skew: opening.skew },
            clock: SharedClock::clone(opening.clock),
            book: Mutex::new(Numbers {
                ledger,
                heard: None,
                next: 0,
            }),
            under_way: TaskTracker::new(),
            ending: AtomicBool::new(false),
        };
        // It is asked before it serves anybody: a service that is not well, or a clock that is off, shows here.
        line.health().await?;
        Ok(line)
    }

    /// The job that it is.
    pub const fn job(&self) -> JobId {
        self.job
    }

    /// Who runs it.
    pub const fn miner(&self) -> MinerKey {
        self.miner
    }

    /// On which kind of executor.
    pub const fn class(&self) -> ExecutorClass {
        self.service.class
    }

    /// This side ends it, for no fault of the session's.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Whether this side ends it, for no fault of the session's.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Where it answers.
    pub fn address(&self) -> &str {
        &self.client.peer().address
    }

    /// Which attempt of which job it is.
    pub fn attempt(&self) -> AttemptId {
        self.numbers().ledger.attestation().attempt
    }

    /// Asks.
    ///
    /// # Errors
    /// No connection, or a broken one.
    pub async fn ask(&self, question: &Question) -> Result<Answer, ClientError> {
        let mut request = Request::new(Full::new(question.body.clone()));
        *request.method_mut() = question.method.clone();
        *request.uri_mut() = question.path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        if !question.body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(GATEWAY_NONCE, hex(&question.gateway_nonce.hex()));
        if let Some(nonce) = &question.client_nonce {
            headers.insert(CLIENT_NONCE, hex(&nonce.hex()));
        }
        if let Some(client) = &question.client {
            headers.insert(CLIENT, hex(&client.hex()));
        }
        let asked = Asked {
            client_nonce: question.client_nonce,
            gateway_nonce: Some(question.gateway_nonce),
            method: question.method.as_str().to_owned(),
            path: question.path.clone(),
            input: Asked::input_of(self.scheme, &question.body),
            at: self.clock.now(),
        };
        let response = self.client.send(request).await?;
        let (tell, seen) = oneshot::channel();
        let report: Report = Box::new(move |checked| {
            // Nobody waits for it any longer: then nobody needs it.
            let _ = tell.send(checked);
        });
        let clock = SharedClock::clone(&self.clock);
        Ok(Answer {
            asked,
            response: CheckedBody::over(response, self.scheme, clock, report),
            seen,
        })
    }

    /// To be held as long as an answer is passed on and not judged: until then the session is not closed.
    pub(crate) fn passing(&self) -> TaskTrackerToken {
        self.under_way.token()
    }

    /// Ends once no answer is passed on.
    pub(crate) async fn quiet(&self) {
        self.under_way.close();
        self.under_way.wait().await;
    }

    /// When the first byte since the last call of this left for the session.
    pub fn first_byte_sent(&self) -> Option<Instant> {
        self.client.first_byte_sent()
    }

    /// What the proof of an answer is worth. One that did not come with it is looked for where the session keeps them.
    pub async fn verdict(
        &self,
        checked: &Checked,
        asked: &Asked,
    ) -> Result<(ResponseProof, Envelope<ResponseProof>), Unproven> {
        let found = {
            let mut numbers = self.numbers();
            let found = checked.verdict(asked, &mut numbers.ledger, self.bounds);
            numbers.note(&found);
            found
        };
        match found {
            Err(Unproven::Absent) => {}
            Ok(_) | Err(Unproven::Unreadable(_) | Unproven::Forged(_)) => return found,
        }
        for wait in LOOKS {
            self.clock.sleep(wait).await;
            let Ok(Some(envelope)) = self.find(asked).await else {
                continue;
            };
            let mut numbers = self.numbers();
            let judged = checked.judge(&envelope, asked, &mut numbers.ledger, self.bounds);
            let found = judged.map(|proof| (proof, envelope)).map_err(Unproven::from);
            numbers.note(&found);
            return found;
        }
        Err(Unproven::Absent)
    }

    /// The proof that carries the nonce of this request, among those that the session still keeps.
    async fn find(&self, asked: &Asked) -> Result<Option<Envelope<ResponseProof>>, ClientError> {
        let mut from = {
            let numbers = self.numbers();
            let gaps = numbers.ledger.missing();
            gaps.first().map_or(numbers.next, |gap| gap.start)
        };
        loop {
            let (proofs, next) = self.client.proofs(from).await?;
            let count = u64::try_from(proofs.len()).unwrap_or(u64::MAX);
            let ours = proofs.into_iter().find(|proof| {
                proof
                    .statement()
                    .is_ok_and(|stated| stated.gateway_nonce == asked.gateway_nonce)
            });
            if ours.is_some() {
                return Ok(ours);
            }
            from = from.saturating_add(count);
            if count == 0 || from >= next {
                return Ok(None);
            }
        }
    }

    /// Asks how the service is, through the seal.
    ///
    /// # Errors
    /// It is not well, or what it says is not proven.
    pub async fn health(&self) -> Result<(), String> {
        self.well(&self.service.health, HEALTH_PATIENCE).await
    }

    /// Has the grader beside the service come up, and asks how it is. Sessions on executors of a class that is graded have one.
    ///
    /// # Errors
    /// It does not come, or what it says is not proven.
    pub async fn stand_by(&self, patience: Duration) -> Result<(), String> {
        self.well(BESIDE, patience).await
    }

    async fn well(&self, path: &str, patience: Duration) -> Result<(), String> {
        let question = Question {
            method: Method::GET,
            path: path.to_owned(),
            body: Bytes::new(),
            client: None,
            client_nonce: None,
            gateway_nonce: draw().map_err(|error| error.to_string())?,
        };
        let asking = async {
            let answer = self
                .ask(&question)
                .await
                .map_err(|error| Causes(&error).to_string())?;
            let status = answer.response.status();
            let body = Limited::new(answer.response.into_body(), MAX_HEALTH)
                .collect()
                .await;
            drop(body.map_err(|error| format!("its health check broke off: {error}"))?);
            let checked = answer
                .seen
                .await
                .map_err(|_| "its health check was not seen to end".to_owned())?;
            self.verdict(&checked, &answer.asked)
                .await
                .map_err(|unproven| format!("its health check is not proven: {unproven}"))?;
            if status.is_success() {
                Ok(())
            } else {
                Err(format!("its health check answers {status}"))
            }
        };
        timeout(patience, asking)
            .await
            .unwrap_or_else(|_| Err("its health check does not answer".to_owned()))
    }

    /// Its miner passes on the last word of the session, which may no longer be there to say it itself.
    pub(crate) fn heard(&self, close: String) {
        self.numbers().heard = Some(close);
    }

    /// Ends the session. Its last word, and what is wrong with it or missing before it.
    pub(crate) async fn close(&self) -> (Option<String>, Option<String>) {
        let proven = self.numbers().ledger.proven();
        match self.client.close(proven).await {
            Ok(said) => {
                let ledger = &mut self.numbers().ledger;
                for proof in &said.proofs {
                    // Of an answer that nobody stayed for. One that is known already, or forged, is not taken again; what then
                    // lacks shows at the close.
                    let _ = ledger.accept_unseen(proof, muster_identity::verify);
                }
                let fault = ledger.close(&said.close, muster_identity::verify).err();
                (
                    Some(said.close.to_text()),
                    fault.map(|forgery| forgery.to_string()),
                )
            }
            Err(error) => {
                let heard = self.numbers().heard.take();
                match heard {
                    None => (None, Some(format!("it gave no last word: {}", Causes(&error)))),
                    Some(text) => self.close_as_heard(text).await,
                }
            }
        }
    }

    /// What a last word is worth that came by the miner. Answers that had not ended are judged a moment later, so a gap is one only
    /// if it stays.
    async fn close_as_heard(&self, text: String) -> (Option<String>, Option<String>) {
        let close = match Envelope::from_text(&text) {
            Ok(close) => close,
            Err(error) => return (None, Some(format!("its last word cannot be read: {error}"))),
        };
        let mut waits = LOOKS.into_iter();
        loop {
            let judged = self.numbers().ledger.close(&close, muster_identity::verify);
            let fault = match judged {
                Ok(_) => return (Some(text), None),
                Err(forgery) => forgery,
            };
            match (&fault, waits.next()) {
                (Forgery::Gap(_), Some(wait)) => self.clock.sleep(wait).await,
                (_, _) => return (Some(text), Some(fault.to_string())),
            }
        }
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        // The ledger is whole between any two statements.
        self.book.lock()
    }
}

impl Numbers {
    fn note(&mut self, found: &Result<(ResponseProof, Envelope<ResponseProof>), Unproven>) {
        if let Ok((proof, _)) = found {
            self.next = self.next.max(proof.sequence.saturating_add(1));
        }
    }
}

/// 32 random bytes.
///
/// # Errors
/// The operating system has none.
pub fn draw() -> Result<Nonce, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(Nonce::from_bytes(bytes))
}

/// Hex digits are a header's value.
fn hex(digits: &str) -> HeaderValue {
    HeaderValue::from_str(digits).unwrap_or_else(|_| HeaderValue::from_static(""))
}
