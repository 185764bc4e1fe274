//! The whitelist of services: which image serves which model, where it listens, what it costs, and whether a miner's
//! attestation matches.

use std::time::Duration;

use indexmap::IndexMap;
use muster_openai::TokenUsage;
use muster_protocol::wire::miner::SealTerms;
use muster_protocol::wire::muster::{ListedImage, MAX_LISTED_IMAGES, WhitelistNotice};
use muster_protocol::{Digest, ExecutorClass, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{Attestation, HashScheme, Price};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of the longest model id, which travels in headers and logs.
const MAX_MODEL: usize = 200;
/// Bytes of the longest path of a Unix socket that every system accepts.
const MAX_SOCKET: usize = 100;
/// The highest price of a million tokens, in rao. With it no sum of a session's earnings overflows.
const MAX_PRICE: u64 = 1_000_000_000_000_000;

/// Where a service listens inside its container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Listen {
    /// A Unix socket, by its name in the folder that the executor mounts for it.
    Socket(String),
    /// A TCP port on the container's own loopback interface.
    Port(u16),
}

/// The program that answers. It determines which requests beyond OpenAI's interface it understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// Muster's reference engine.
    Reference,
    /// vLLM.
    Vllm,
    /// llama.cpp's server.
    LlamaCpp,
    /// Another program with OpenAI's interface.
    #[default]
    Other,
}

/// One entry of the whitelist: an image that serves a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// The id of the model, as clients name it.
    pub model: String,
    /// The image, by the digest of its configuration. No other image may serve the model.
    pub image: ImageId,
    /// The name by which a container engine pulls the image if it does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Digest of weights, dtype, tokenizer and template, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<Digest>,
    /// The program inside the image.
    #[serde(default)]
    pub engine: EngineKind,
    /// The hash scheme of the session's proofs.
    #[serde(default, with = "scheme")]
    pub scheme: HashScheme,
    /// The path that answers 200 once the service is ready.
    #[serde(default = "health")]
    pub health: String,
    /// Where the service listens inside its container.
    #[serde(default = "socket")]
    pub listen: Listen,
    /// The class of executor that the service needs.
    pub class: ExecutorClass,
    /// The arguments of the image's entry point.
    #[serde(default)]
    pub args: Vec<String>,
    /// The environment variables of the container.
    #[serde(default)]
    pub env: IndexMap<String, String>,
    /// The price of a million input tokens, in rao.
    #[serde(default)]
    pub input_price: u64,
    /// The price of a million output tokens, in rao.
    #[serde(default)]
    pub output_price: u64,
}

fn health() -> String {
    "/health".to_owned()
}

fn socket() -> Listen {
    Listen::Socket("http.sock".to_owned())
}

/// A defect of an entry of the whitelist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// The model id is empty, too long, or not visible ASCII.
    #[error("a model's id has 1 to {MAX_MODEL} visible ASCII characters")]
    Model,
    /// Two entries serve the same model.
    #[error("the model {0} is served by an entry before this one")]
    Twice(String),
    /// The health path is not a path.
    #[error("a health path begins with / and has no spaces")]
    Health,
    /// The socket's name could leave its folder, or is too long.
    #[error(
        "a socket is a plain file name of at most {MAX_SOCKET} bytes: no / and no leading dot; the folder is the executor's"
    )]
    Socket,
    /// The port is 0.
    #[error("a port is at least 1")]
    Port,
    /// A price is too high for sums of earnings.
    #[error("a price is at most {MAX_PRICE} rao for a million tokens")]
    Price,
}

/// Why an image or a model is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotListed {
    /// No entry serves this model.
    #[error("the model {0} is not on the whitelist")]
    Model(String),
    /// No entry has this image.
    #[error("the image {0} is not on the whitelist, so it may not serve")]
    Image(ImageId),
}

/// The first difference between an attestation and the session that was ordered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The attestation names another miner than the one that runs the job.
    #[error("the session was attested by {0}, who does not run it")]
    Miner(MinerKey),
    /// The attestation was made for another validator.
    #[error("the session was attested for another validator")]
    Audience,
    /// The attestation is of another job or attempt.
    #[error("the attestation is of another job")]
    Job,
    /// The session runs another image.
    #[error("the image {0} runs instead of the whitelisted one")]
    Image(ImageId),
    /// The session serves another model than the whitelisted one.
    #[error("another model is attested than the whitelist names")]
    Weights,
    /// The session's proofs use another hash scheme.
    #[error("the session hashes by {}, the whitelist says {}", .got.name(), .wanted.name())]
    Scheme {
        /// The scheme of the attestation.
        got: HashScheme,
        /// The scheme of the whitelist.
        wanted: HashScheme,
    },
    /// The session has another price.
    #[error("the session asks another price than the whitelist's")]
    Price,
    /// The session accepts another client certificate.
    #[error("the session accepts another client certificate than this validator's")]
    ClientCertificate,
    /// The endpoint presents another certificate than the attested one.
    #[error("the endpoint presents another certificate than the attested one")]
    ServerCertificate,
    /// The attestation is not valid yet: the executor's clock is ahead.
    #[error(
        "the attestation becomes valid in {} ms: the executor's clock is ahead by more than {} ms",
        .ahead.as_millis(), .allowed.as_millis()
    )]
    NotYet {
        /// Time until it becomes valid.
        ahead: Duration,
        /// The largest allowed difference between the clocks.
        allowed: Duration,
    },
    /// The attestation has expired.
    #[error("the attestation has expired")]
    Expired,
}

/// The session that was ordered, to be compared with the attestation.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The miner that runs the job.
    pub miner: MinerKey,
    /// The validator that ordered the session.
    pub audience: ValidatorKey,
    /// The streaming job that runs the session.
    pub job: JobId,
    /// The attempt of the job.
    pub attempt: muster_protocol::AttemptId,
    /// SHA-256 of the validator's client certificate, DER.
    pub client_certificate: Digest,
    /// SHA-256 of the certificate that the miner stated for its endpoint, DER.
    pub server_certificate: Digest,
    /// The service that was ordered.
    pub service: &'a Service,
}

/// The whitelisted services, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whitelist {
    services: Vec<Service>,
}

/// The notice that tells miners which images a validator runs in sealed sessions, so that they can fetch them in
/// advance. It lists the first services, as many as a notice holds.
pub fn notice(services: impl IntoIterator<Item = Service>) -> WhitelistNotice {
    let listed = |service: Service| ListedImage {
        image: service.image,
        reference: service.reference,
        class: service.class,
        model: service.model,
    };
    WhitelistNotice {
        images: services.into_iter().take(MAX_LISTED_IMAGES).map(listed).collect(),
    }
}

// === impl Service ===

impl Service {
    /// The price of the service.
    pub const fn price(&self) -> Price {
        Price {
            input: self.input_price,
            output: self.output_price,
        }
    }

    /// The price of a response, in rao, rounded up.
    pub fn cost(&self, usage: TokenUsage) -> u64 {
        let part = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let millionths = part(usage.input, self.input_price) + part(usage.output, self.output_price);
        u64::try_from(millionths.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The name or digest by which a container engine finds the image.
    pub fn pull_by(&self) -> String {
        match &self.reference {
            Some(reference) => reference.clone(),
            None => self.image.to_string(),
        }
    }

    /// The terms that the miner is told and must attest.
    pub fn terms(&self) -> SealTerms {
        let (socket, port) = match &self.listen {
            Listen::Socket(name) => (Some(name.clone()), None),
            Listen::Port(port) => (None, Some(*port)),
        };
        SealTerms {
            job: None,
            model: self.model.clone(),
            image: self.image,
            weights: self.weights,
            scheme: self.scheme.name().to_owned(),
            health: self.health.clone(),
            socket,
            port,
            input_price: self.input_price,
            output_price: self.output_price,
            grader: None,
        }
    }

    fn defects(&self) -> Vec<Defect> {
        let mut defects = Vec::new();
        let visible = self.model.bytes().all(|byte| byte.is_ascii_graphic());
        if self.model.is_empty() || self.model.len() > MAX_MODEL || !visible {
            defects.push(Defect::Model);
        }
        let plain = |path: &str| path.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.health.starts_with('/') || !plain(&self.health) {
            defects.push(Defect::Health);
        }
        match &self.listen {
            Listen::Socket(name) => {
                let short = !name.is_empty() && name.len() <= MAX_SOCKET;
                if !short || name.contains('/') || name.starts_with('.') || !plain(name) {
                    defects.push(Defect::Socket);
                }
            }
            Listen::Port(0) => defects.push(Defect::Port),
            Listen::Port(_) => {}
        }
        if self.input_price > MAX_PRICE || self.output_price > MAX_PRICE {
            defects.push(Defect::Price);
        }
        defects
    }

    /// Compares an attestation with the session that was ordered. The signature is not checked here.
    ///
    /// # Errors
    /// The first difference.
    pub fn judge(
        attested: &Attestation,
        expected: &Expected<'_>,
        now: Timestamp,
        skew: Duration,
    ) -> Result<(), Mismatch> {
        let service = expected.service;
        if attested.miner != expected.miner {
            return Err(Mismatch::Miner(attested.miner));
        }
        if attested.audience != expected.audience {
            return Err(Mismatch::Audience);
        }
        if attested.job != expected.job || attested.attempt != expected.attempt {
            return Err(Mismatch::Job);
        }
        if attested.image != service.image {
            return Err(Mismatch::Image(attested.image));
        }
        if service.weights.is_some() && attested.model != service.weights {
            return Err(Mismatch::Weights);
        }
        if attested.scheme != service.scheme {
            return Err(Mismatch::Scheme {
                got: attested.scheme,
                wanted: service.scheme,
            });
        }
        if attested.price != service.price() {
            return Err(Mismatch::Price);
        }
        if attested.client_certificate != expected.client_certificate {
            return Err(Mismatch::ClientCertificate);
        }
        if attested.server_certificate != expected.server_certificate {
            return Err(Mismatch::ServerCertificate);
        }
        let ahead = attested.not_before.since(now);
        if ahead > skew {
            return Err(Mismatch::NotYet { ahead, allowed: skew });
        }
        if attested.not_after <= now {
            return Err(Mismatch::Expired);
        }
        Ok(())
    }
}

// === impl Whitelist ===

impl Whitelist {
    /// Checks the entries of a configuration.
    ///
    /// # Errors
    /// All defects, each with the index of its entry.
    pub fn new(services: Vec<Service>) -> Result<Self, Vec<(usize, Defect)>> {
        let mut defects = Vec::new();
        for (index, service) in services.iter().enumerate() {
            defects.extend(service.defects().into_iter().map(|defect| (index, defect)));
            if services.iter().take(index).any(|one| one.model == service.model) {
                defects.push((index, Defect::Twice(service.model.clone())));
            }
        }
        if defects.is_empty() {
            Ok(Self { services })
        } else {
            Err(defects)
        }
    }

    /// The services, in the order of the configuration.
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// The service of a model.
    ///
    /// # Errors
    /// [`NotListed::Model`].
    pub fn of_model(&self, model: &str) -> Result<&Service, NotListed> {
        let found = self.services.iter().find(|service| service.model == model);
        found.ok_or_else(|| NotListed::Model(model.to_owned()))
    }

    /// The first service that has this image.
    ///
    /// # Errors
    /// [`NotListed::Image`].
    pub fn of_image(&self, image: ImageId) -> Result<&Service, NotListed> {
        let found = self.services.iter().find(|service| service.image == image);
        found.ok_or(NotListed::Image(image))
    }
}

mod scheme {
    //! (De)serialises a hash scheme by its name.
    use super::{Deserialize, Deserializer, HashScheme, Serializer};

    pub(super) fn serialize<S: Serializer>(scheme: &HashScheme, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(scheme.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HashScheme, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        HashScheme::from_name(&name).ok_or_else(|| {
            let known: Vec<_> = HashScheme::ALL.iter().map(|scheme| scheme.name()).collect();
            serde::de::Error::custom(format!("unknown hash scheme; known are {}", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::{AttemptId, Hotkey};
    use muster_response_proof::{SessionId, Text};
    use uuid::Uuid;

    use super::*;

    fn service() -> Service {
        let text = r#"
            model = "tiny"
            image = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
            class = "always_on.test"
            scheme = "text"
            listen = { port = 8000 }
            output_price = 7
        "#;
        toml::from_str(text).unwrap()
    }

    fn digest(byte: u8) -> Digest {
        Digest::from_bytes([byte; 32])
    }

    fn key(byte: u8) -> Hotkey {
        Hotkey::from_bytes([byte; 32])
    }

    fn attestation() -> Attestation {
        Attestation {
            session: SessionId(Uuid::from_u128(1)),
            session_key: key(9),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
            miner: MinerKey(key(1)),
            audience: ValidatorKey(key(2)),
            server_certificate: digest(4),
            client_certificate: digest(5),
            executor: Text::new("e").unwrap(),
            address: Text::new("127.0.0.1:1").unwrap(),
            image: service().image,
            model: None,
            scheme: HashScheme::Text,
            price: Price { input: 0, output: 7 },
            not_before: Timestamp::from_secs(100),
            not_after: Timestamp::from_secs(200),
        }
    }

    fn judge(change: impl FnOnce(&mut Attestation), at: i64) -> Result<(), Mismatch> {
        let mut attested = attestation();
        change(&mut attested);
        let service = service();
        let expected = Expected {
            miner: MinerKey(key(1)),
            audience: ValidatorKey(key(2)),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
            client_certificate: digest(5),
            server_certificate: digest(4),
            service: &service,
        };
        let now = Timestamp::from_secs(at);
        Service::judge(&attested, &expected, now, Duration::from_secs(5))
    }

    #[test]
    fn a_matching_attestation_passes_and_each_difference_is_named() {
        assert_eq!(judge(|_| (), 100), Ok(()));
        assert_eq!(judge(|_| (), 95), Ok(()), "within the clocks' bound");
        type Change = fn(&mut Attestation);
        let table: [(Change, Mismatch); 9] = [
            (|a| a.miner = MinerKey(key(7)), Mismatch::Miner(MinerKey(key(7)))),
            (|a| a.audience = ValidatorKey(key(7)), Mismatch::Audience),
            (|a| a.job = JobId::from_uuid(Uuid::from_u128(9)), Mismatch::Job),
            (
                |a| a.attempt = AttemptId::from_uuid(Uuid::from_u128(9)),
                Mismatch::Job,
            ),
            (
                |a| a.image = ImageId(digest(7)),
                Mismatch::Image(ImageId(digest(7))),
            ),
            (
                |a| a.scheme = HashScheme::RawHttp,
                Mismatch::Scheme {
                    got: HashScheme::RawHttp,
                    wanted: HashScheme::Text,
                },
            ),
            (|a| a.price.output = 8, Mismatch::Price),
            (|a| a.client_certificate = digest(7), Mismatch::ClientCertificate),
            (|a| a.server_certificate = digest(7), Mismatch::ServerCertificate),
        ];
        for (change, reason) in table {
            assert_eq!(judge(change, 100), Err(reason));
        }
        assert_eq!(judge(|_| (), 200), Err(Mismatch::Expired));
        let ahead = Mismatch::NotYet {
            ahead: Duration::from_secs(6),
            allowed: Duration::from_secs(5),
        };
        assert!(
            ahead.to_string().contains("6000 ms"),
            "the text has the measured difference: {ahead}"
        );
        assert_eq!(judge(|_| (), 94), Err(ahead));
    }

    #[test]
    fn a_cost_is_rounded_up_and_never_overflows() {
        let mut service = service();
        (service.input_price, service.output_price) = (1, 2_000_000);
        assert_eq!(service.cost(TokenUsage { input: 1, output: 0 }), 1);
        assert_eq!(service.cost(TokenUsage { input: 0, output: 3 }), 6);
        (service.input_price, service.output_price) = (u64::MAX, 0);
        let most = TokenUsage {
            input: u64::MAX,
            output: u64::MAX,
        };
        assert_eq!(service.cost(most), u64::MAX);
    }

    #[test]
    fn every_defect_of_every_entry_is_found() {
        let mut bad = service();
        bad.model = "a b".to_owned();
        bad.health = "health".to_owned();
        bad.listen = Listen::Socket("../docker.sock".to_owned());
        bad.input_price = u64::MAX;
        let defects = Whitelist::new(vec![service(), bad, service()]).unwrap_err();
        assert_eq!(
            defects,
            [
                (1, Defect::Model),
                (1, Defect::Health),
                (1, Defect::Socket),
                (1, Defect::Price),
                (2, Defect::Twice("tiny".to_owned())),
            ]
        );
    }

    #[test]
    fn an_unlisted_model_or_image_is_an_error_that_names_it() {
        let list = Whitelist::new(vec![service()]).unwrap();
        assert!(list.of_model("tiny").is_ok());
        let refused = list.of_model("huge").unwrap_err();
        assert_eq!(refused.to_string(), "the model huge is not on the whitelist");
        let image = ImageId(digest(7));
        assert_eq!(list.of_image(image), Err(NotListed::Image(image)));
    }

    #[test]
    fn an_entry_is_read_back_as_it_was_written() {
        let json = serde_json::to_string(&service()).unwrap();
        assert!(
            json.contains(r#""listen":{"port":8000}"#) && json.contains(r#""scheme":"text""#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<Service>(&json).unwrap(), service());
        assert!(serde_json::from_str::<Service>(&json.replace("text", "words")).is_err());
    }
}
