//! The whitelist of services: which image serves which model, where it listens, and what it costs.

use std::path::PathBuf;

use indexmap::IndexMap;
use muster_openai::TokenUsage;
use muster_protocol::wire::miner::SealTerms;
use muster_protocol::wire::muster::{ListedImage, MAX_LISTED_IMAGES, WhitelistNotice};
use muster_protocol::{Digest, ExecutorClass, ImageId};
use muster_response_proof::{HashScheme, Price};
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
pub enum ListenAddress {
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
    /// The server of vLLM.
    Vllm,
    /// The program `llama-server` of llama.cpp.
    LlamaCpp,
    /// Another program with OpenAI's interface.
    #[default]
    Other,
}

/// The file of a model's tokenizer on the gateway's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerFile {
    /// The path of the model's `tokenizer.json`.
    pub path: PathBuf,
    /// SHA-256 of the file: `sha256:` and 64 hex digits.
    pub sha256: Digest,
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
    /// The model's tokenizer, by which the gateway counts tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerFile>,
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
    pub listen: ListenAddress,
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
    /// The rated speed of a session: input tokens that one executor of the class takes in a second.
    #[serde(default)]
    pub input_tokens_per_s: u32,
    /// The rated speed of a session: output tokens that one executor of the class makes in a second, all of its
    /// answers together.
    #[serde(default)]
    pub output_tokens_per_s: u32,
}

fn health() -> String {
    "/health".to_owned()
}

fn socket() -> ListenAddress {
    ListenAddress::Socket("http.sock".to_owned())
}

/// A defect of an entry of the whitelist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceDefect {
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
    /// A rated speed is missing, so a session's receipt could not be computed.
    #[error(
        "input_tokens_per_s and output_tokens_per_s are at least 1: the tokens that one executor of the class takes and \
         makes in a second; miners are paid the time that their tokens take at this speed"
    )]
    Speed,
}

/// The whitelist has no such service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnlistedService {
    /// No entry serves this model.
    #[error("the model {0} is not on the whitelist")]
    Model(String),
    /// No entry has this image.
    #[error("the image {0} is not on the whitelist, so it may not serve")]
    Image(ImageId),
}

/// The whitelisted services, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whitelist {
    services: Vec<Service>,
}

/// The notice that reports to miners which images a validator runs in sealed sessions, so that they can fetch them in
/// advance. It lists the first services, as many as a notice holds.
pub fn whitelist_notice(services: impl IntoIterator<Item = Service>) -> WhitelistNotice {
    let listed = |service: Service| ListedImage {
        image: service.image,
        reference: service.reference,
        class: service.class,
        model: service.model,
        share: None,
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

    /// The time that these tokens take one executor at the rated speed, in microseconds, rounded down. A session is
    /// paid this time, at most the time that it lived.
    pub fn rated_micros(&self, usage: TokenUsage) -> u64 {
        let part = |tokens: u64, speed: u32| u128::from(tokens) * 1_000_000 / u128::from(speed.max(1));
        let micros =
            part(usage.input, self.input_tokens_per_s) + part(usage.output, self.output_tokens_per_s);
        u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// The name or digest by which a container engine finds the image.
    pub fn pull_by(&self) -> String {
        match &self.reference {
            Some(reference) => reference.clone(),
            None => self.image.to_string(),
        }
    }

    /// The terms that are sent to the miner, which must attest them.
    pub fn terms(&self) -> SealTerms {
        let (socket, port) = match &self.listen {
            ListenAddress::Socket(name) => (Some(name.clone()), None),
            ListenAddress::Port(port) => (None, Some(*port)),
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

    fn defects(&self) -> Vec<ServiceDefect> {
        let mut defects = Vec::new();
        let visible = self.model.bytes().all(|byte| byte.is_ascii_graphic());
        if self.model.is_empty() || self.model.len() > MAX_MODEL || !visible {
            defects.push(ServiceDefect::Model);
        }
        let plain = |path: &str| path.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.health.starts_with('/') || !plain(&self.health) {
            defects.push(ServiceDefect::Health);
        }
        match &self.listen {
            ListenAddress::Socket(name) => {
                let short = !name.is_empty() && name.len() <= MAX_SOCKET;
                if !short || name.contains('/') || name.starts_with('.') || !plain(name) {
                    defects.push(ServiceDefect::Socket);
                }
            }
            ListenAddress::Port(0) => defects.push(ServiceDefect::Port),
            ListenAddress::Port(_) => {}
        }
        if self.input_price > MAX_PRICE || self.output_price > MAX_PRICE {
            defects.push(ServiceDefect::Price);
        }
        if self.input_tokens_per_s == 0 || self.output_tokens_per_s == 0 {
            defects.push(ServiceDefect::Speed);
        }
        defects
    }
}

// === impl Whitelist ===

impl Whitelist {
    /// Checks the entries of a configuration.
    ///
    /// # Errors
    /// All defects, each with the index of its entry.
    pub fn new(services: Vec<Service>) -> Result<Self, Vec<(usize, ServiceDefect)>> {
        let mut defects = Vec::new();
        for (index, service) in services.iter().enumerate() {
            defects.extend(service.defects().into_iter().map(|defect| (index, defect)));
            if services.iter().take(index).any(|one| one.model == service.model) {
                defects.push((index, ServiceDefect::Twice(service.model.clone())));
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
    /// No entry serves the model.
    pub fn of_model(&self, model: &str) -> Result<&Service, UnlistedService> {
        let found = self.services.iter().find(|service| service.model == model);
        found.ok_or_else(|| UnlistedService::Model(model.to_owned()))
    }

    /// The first service that has this image.
    ///
    /// # Errors
    /// No entry has the image.
    pub fn of_image(&self, image: ImageId) -> Result<&Service, UnlistedService> {
        let found = self.services.iter().find(|service| service.image == image);
        found.ok_or(UnlistedService::Image(image))
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
    use super::*;

    fn service() -> Service {
        let text = r#"
            model = "tiny"
            image = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
            class = "always_on.test"
            scheme = "text"
            listen = { port = 8000 }
            output_price = 7
            input_tokens_per_s = 1000
            output_tokens_per_s = 50
        "#;
        toml::from_str(text).unwrap()
    }

    fn digest(byte: u8) -> Digest {
        Digest::from_bytes([byte; 32])
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
    fn tokens_are_worth_the_time_that_the_rated_speed_takes_for_them() {
        let mut service = service();
        let rated = |service: &Service, input, output| service.rated_micros(TokenUsage { input, output });
        assert_eq!(rated(&service, 1_000, 0), 1_000_000);
        assert_eq!(rated(&service, 1, 50), 1_001_000);
        assert_eq!(rated(&service, 0, 0), 0);
        service.output_tokens_per_s = 3;
        assert_eq!(
            rated(&service, 0, 1),
            333_333,
            "a part of a microsecond is not paid"
        );
        service.input_tokens_per_s = 1;
        assert_eq!(rated(&service, u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn every_defect_of_every_entry_is_found() {
        let mut bad = service();
        bad.model = "a b".to_owned();
        bad.health = "health".to_owned();
        bad.listen = ListenAddress::Socket("../docker.sock".to_owned());
        bad.input_price = u64::MAX;
        bad.output_tokens_per_s = 0;
        let defects = Whitelist::new(vec![service(), bad, service()]).unwrap_err();
        assert_eq!(
            defects,
            [
                (1, ServiceDefect::Model),
                (1, ServiceDefect::Health),
                (1, ServiceDefect::Socket),
                (1, ServiceDefect::Price),
                (1, ServiceDefect::Speed),
                (2, ServiceDefect::Twice("tiny".to_owned())),
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
        assert_eq!(list.of_image(image), Err(UnlistedService::Image(image)));
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
