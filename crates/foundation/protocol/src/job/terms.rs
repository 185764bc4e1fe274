//! The terms of a job: requests that ComputeHorde's signed fields cannot hold. They are bound to one job
//! and signed by the same key as the job.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::checkpoints::CheckpointTerms;
use super::limits::OverLimit;
use super::metrics::{MAX_METRIC_PATTERN_BYTES, MAX_METRIC_RULES, MetricRule};
use super::program_start::ProgramStart;
use crate::digest::{Digest, ImageId};

/// Keeps the digest of terms apart from everything else that is signed; its last part is the layout's version.
const TERMS_DOMAIN: &[u8] = b"muster/job-terms/1";

/// The same for terms with rules for metrics, which earlier releases do not know.
const TERMS_DOMAIN_2: &[u8] = b"muster/job-terms/2";

/// The same for terms that declare the job deterministic.
const TERMS_DOMAIN_3: &[u8] = b"muster/job-terms/3";

/// The same for terms with checkpoints.
const TERMS_DOMAIN_4: &[u8] = b"muster/job-terms/4";

/// The same for terms about how the program is started.
const TERMS_DOMAIN_5: &[u8] = b"muster/job-terms/5";

/// Seconds for fetching the image of a job whose terms say nothing: half an hour, in which a line of 50 Mbit/s brings
/// 11 GB.
pub const DEFAULT_IMAGE_SECS: u64 = 1_800;

/// The longest limit for fetching an image, in seconds: seven days, as long as the REST interface allows any stage.
pub const MAX_IMAGE_SECS: u64 = 604_800;

/// The longest time in a queue, in seconds: thirty days, as long as a job may run.
pub const MAX_QUEUE_SECS: u64 = super::limits::MAX_JOB_SECS;

/// The longest URL of an image's archive, in bytes: what servers and proxies commonly accept.
pub const MAX_ARCHIVE_URL_BYTES: usize = 8_192;

/// The largest archive of an image, in bytes: one tebibyte, more than any image that an engine was seen to load.
pub const MAX_ARCHIVE_BYTES: u64 = 1 << 40;

/// The requests of a user that ComputeHorde's fields cannot hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobTerms {
    /// Limit for fetching the image, in seconds: 1 to 604,800; [`DEFAULT_IMAGE_SECS`] if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 604_800))]
    pub image_time_limit: Option<u64>,
    /// The job's place among the jobs of its account that wait.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = u8, minimum = 1, maximum = 10))]
    pub priority: Priority,
    /// The longest time that the job may wait for an executor, in seconds: at most 2,592,000. With 0 it does not wait;
    /// if absent, the validator decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 2_592_000))]
    pub queue_time_limit: Option<u64>,
    /// The archive that holds the image; absent for an image that the executor finds by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_archive: Option<ArchiveSource>,
    /// The rules that find metrics in the program's standard output, at most [`MAX_METRIC_RULES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricRule>,
    /// Whether the user declares that the job's outputs follow from its inputs alone, so that the validator may run it
    /// again on its own miner and compare them. The miner that runs the job is not told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deterministic: bool,
    /// The checkpoints that the program leaves, from which another attempt goes on; absent for a job without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<CheckpointTerms>,
    /// How the program is started; absent for a job whose image decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<ProgramStart>,
}

/// The archive of a user's own image, as `docker save` writes it. The job names the image in it by its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ArchiveSource {
    /// The URL from which an executor fetches the archive. Its bearer can read the archive.
    pub url: String,
    /// The SHA-256 of the archive's bytes.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sha256: Digest,
    /// The length of the archive in bytes.
    pub length: u64,
}

/// The place of a job among the waiting jobs of its account: 1 to 10, of which 10 is served first. The default is 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

/// The number is no priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a priority is a whole number from 1 (served last) to 10 (served first)")]
pub struct PriorityError;

// === impl Priority ===

impl Priority {
    /// The priority that is served last.
    pub const LOWEST: Self = Self(1);
    /// The priority that is served first.
    pub const HIGHEST: Self = Self(10);

    /// The number, 1 to 10.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(5)
    }
}

impl TryFrom<u8> for Priority {
    type Error = PriorityError;

    fn try_from(number: u8) -> Result<Self, PriorityError> {
        if (Self::LOWEST.0..=Self::HIGHEST.0).contains(&number) {
            Ok(Self(number))
        } else {
            Err(PriorityError)
        }
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

impl std::str::FromStr for Priority {
    type Err = PriorityError;

    fn from_str(text: &str) -> Result<Self, PriorityError> {
        text.parse::<u8>().map_err(|_| PriorityError)?.try_into()
    }
}

// === impl JobTerms ===

impl JobTerms {
    /// The limit for fetching the image in seconds, whether or not the terms name one.
    pub fn image_secs(&self) -> u64 {
        self.image_time_limit.unwrap_or(DEFAULT_IMAGE_SECS)
    }

    /// The fixed layout of the terms of the job with this signed digest.
    ///
    /// The job's digest (64 bytes); the priority (1); the image's limit and the queue's, each as a byte that states
    /// whether it is there and 8 bytes if it is; a byte that states whether there is an archive, and if so the URL's
    /// length (4), the URL, the archive's SHA-256 (32) and its length (8). Integers are little-endian.
    ///
    /// Terms with rules for metrics have a zero byte behind the job's digest, and at the end the number of rules (1)
    /// and each of them: the length of its name (1), the name, the length of its pattern (2), the pattern.
    ///
    /// Terms of a deterministic job have two zero bytes behind the job's digest, and at the end the rules, also where
    /// their number is 0.
    ///
    /// Terms with checkpoints have three zero bytes behind the job's digest, then a byte that states whether the job is
    /// deterministic, and at the end the rules, also where their number is 0, and the checkpoints'
    /// [own layout](CheckpointTerms).
    ///
    /// Terms about how the program is started have three zero bytes behind the job's digest, then a byte 2, or 3 for a
    /// deterministic job, and at the end the rules, also where their number is 0, the start's
    /// [own layout](ProgramStart), a byte that states whether there are checkpoints, and if so their layout.
    pub fn layout(&self, job: &[u8; 64]) -> Vec<u8> {
        let mut layout = Vec::with_capacity(128);
        layout.extend_from_slice(job);
        let is_later = !self.metrics.is_empty()
            || self.deterministic
            || self.checkpoints.is_some()
            || self.start.is_some();
        match (&self.start, &self.checkpoints, self.deterministic) {
            (Some(_), _, deterministic) => layout.extend_from_slice(&[0, 0, 0, 2 | u8::from(deterministic)]),
            (None, Some(_), deterministic) => layout.extend_from_slice(&[0, 0, 0, u8::from(deterministic)]),
            (None, None, true) => layout.extend_from_slice(&[0, 0]),
            (None, None, false) if is_later => layout.push(0),
            (None, None, false) => {}
        }
        layout.push(self.priority.0);
        for seconds in [self.image_time_limit, self.queue_time_limit] {
            layout.push(u8::from(seconds.is_some()));
            layout.extend(seconds.into_iter().flat_map(u64::to_le_bytes));
        }
        layout.push(u8::from(self.image_archive.is_some()));
        if let Some(archive) = &self.image_archive {
            // A longer URL is over its limit, and a length that was cut off could only make its signature invalid.
            let url_length = u32::try_from(archive.url.len()).unwrap_or(u32::MAX);
            layout.extend_from_slice(&url_length.to_le_bytes());
            layout.extend_from_slice(archive.url.as_bytes());
            layout.extend_from_slice(archive.sha256.as_bytes());
            layout.extend_from_slice(&archive.length.to_le_bytes());
        }
        if is_later {
            // Longer lists, names and patterns are over their limits.
            layout.push(u8::try_from(self.metrics.len()).unwrap_or(u8::MAX));
            for rule in &self.metrics {
                let (name, pattern) = (rule.name.as_str(), rule.pattern.as_bytes());
                layout.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                layout.extend_from_slice(name.as_bytes());
                layout.extend_from_slice(&u16::try_from(pattern.len()).unwrap_or(u16::MAX).to_le_bytes());
                layout.extend_from_slice(pattern);
            }
        }
        if let Some(start) = &self.start {
            start.add_layout(&mut layout);
            layout.push(u8::from(self.checkpoints.is_some()));
        }
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.add_layout(&mut layout);
        }
        layout
    }

    /// The 32 bytes that are signed: SHA-256 of the domain and the layout. The domain is `muster/job-terms/1`,
    /// `muster/job-terms/2` for terms with rules for metrics, `muster/job-terms/3` for those of deterministic jobs,
    /// `muster/job-terms/4` for those with checkpoints, and `muster/job-terms/5` for those about the program's start.
    pub fn digest(&self, job: &[u8; 64]) -> [u8; 32] {
        let domain = match (&self.start, &self.checkpoints, self.deterministic) {
            (Some(_), _, _) => TERMS_DOMAIN_5,
            (None, Some(_), _) => TERMS_DOMAIN_4,
            (None, None, true) => TERMS_DOMAIN_3,
            (None, None, false) if self.metrics.is_empty() => TERMS_DOMAIN,
            (None, None, false) => TERMS_DOMAIN_2,
        };
        Sha256::new()
            .chain_update(domain)
            .chain_update(self.layout(job))
            .finalize()
            .into()
    }

    /// The fields that exceed their limits, for a job with this image reference; empty for terms that can be kept.
    pub fn find_over_limits(&self, docker_image: &str) -> Vec<OverLimit> {
        let mut found = Vec::new();
        let mut refuse = |field, reason: String| found.push(OverLimit { field, reason });
        if self
            .image_time_limit
            .is_some_and(|seconds| !(1..=MAX_IMAGE_SECS).contains(&seconds))
        {
            let reason = format!("It must be 1 to {MAX_IMAGE_SECS} seconds (seven days).");
            refuse("image_time_limit", reason);
        }
        if self
            .queue_time_limit
            .is_some_and(|seconds| seconds > MAX_QUEUE_SECS)
        {
            let reason = format!("It may be {MAX_QUEUE_SECS} seconds (thirty days) at most.");
            refuse("queue_time_limit", reason);
        }
        if self.metrics.len() > MAX_METRIC_RULES {
            let reason = format!("There may be {MAX_METRIC_RULES} rules for metrics at most.");
            refuse("metrics", reason);
        }
        let long = |rule: &&MetricRule| !(1..=MAX_METRIC_PATTERN_BYTES).contains(&rule.pattern.len());
        if let Some(rule) = self.metrics.iter().find(long) {
            let name = &rule.name;
            let reason = format!("The pattern of {name} must have 1 to {MAX_METRIC_PATTERN_BYTES} bytes.");
            refuse("metrics", reason);
        }
        if let Some(reason) = self.checkpoints.as_ref().and_then(CheckpointTerms::find_flaw) {
            refuse("checkpoints", reason);
        }
        if let Some(reason) = self.start.as_ref().and_then(ProgramStart::find_flaw) {
            refuse("start", reason);
        }
        if let Some(archive) = &self.image_archive {
            let web = archive.url.starts_with("http://") || archive.url.starts_with("https://");
            let plain = archive.url.bytes().all(|byte| byte.is_ascii_graphic());
            if !web || !plain || archive.url.len() > MAX_ARCHIVE_URL_BYTES {
                let reason = format!(
                    "The archive's url must be an http or https URL of at most {MAX_ARCHIVE_URL_BYTES} bytes."
                );
                refuse("image_archive", reason);
            }
            if !(1..=MAX_ARCHIVE_BYTES).contains(&archive.length) {
                let reason = format!("The archive's length must be 1 to {MAX_ARCHIVE_BYTES} bytes.");
                refuse("image_archive", reason);
            }
            if docker_image.parse::<ImageId>().is_err() {
                let reason =
                    "A job whose image lies in an archive names the image by its id, such as sha256:1f0c… .";
                refuse("image_archive", reason.to_owned());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::JobId;
    use crate::job::{BestMetric, ResumeSource, SaveSignal};

    fn full() -> JobTerms {
        JobTerms {
            image_time_limit: Some(3_600),
            priority: Priority::HIGHEST,
            queue_time_limit: Some(86_400),
            image_archive: Some(ArchiveSource {
                url: "https://files.example/a.tar".to_owned(),
                sha256: Digest::of(b""),
                length: 258,
            }),
            metrics: vec![],
            deterministic: false,
            checkpoints: None,
            start: None,
        }
    }

    fn rule(name: &str, pattern: &str) -> MetricRule {
        MetricRule {
            name: name.parse().unwrap(),
            pattern: pattern.to_owned(),
        }
    }

    #[test]
    fn rules_for_metrics_are_of_the_second_layout() {
        let terms = JobTerms {
            metrics: vec![rule("loss", "loss: ([0-9.]+)"), rule("a", "b")],
            ..JobTerms::default()
        };
        let start = "07".repeat(64);
        let layout = "000500000002046c6f73730f006c6f73733a20285b302d392e5d2b290161010062";
        assert_eq!(hex::encode(terms.layout(&[7; 64])), format!("{start}{layout}"));
        assert_eq!(
            hex::encode(terms.digest(&[7; 64])),
            "a63cc79786b161f677d495717bdf0d95b5d8fe8fc7a84b7ba4faa1fda81e31dc"
        );
        assert_eq!(
            serde_json::to_string(&terms).unwrap(),
            r#"{"priority":5,"metrics":[{"name":"loss","pattern":"loss: ([0-9.]+)"},{"name":"a","pattern":"b"}]}"#
        );
        let over = |metrics: Vec<MetricRule>| {
            let terms = JobTerms {
                metrics,
                ..JobTerms::default()
            };
            let found = terms.find_over_limits("busybox");
            found.into_iter().map(|over| over.field).collect::<Vec<_>>()
        };
        assert_eq!(over(vec![rule("a", "b"); 40]), [""; 0]);
        assert_eq!(over(vec![rule("a", "b"); 41]), ["metrics"]);
        assert_eq!(over(vec![rule("a", "")]), ["metrics"]);
        assert_eq!(over(vec![rule("a", &"b".repeat(501))]), ["metrics"]);
    }

    #[test]
    fn a_deterministic_job_is_of_the_third_layout() {
        let start = "07".repeat(64);
        let plain = JobTerms {
            deterministic: true,
            ..JobTerms::default()
        };
        assert_eq!(
            hex::encode(plain.layout(&[7; 64])),
            format!("{start}00000500000000")
        );
        assert_eq!(
            hex::encode(plain.digest(&[7; 64])),
            "3eb9743e6e4d546b88074e862526c0078adf6275a32c050b633d0cd17d369b37"
        );
        let with_rule = JobTerms {
            metrics: vec![rule("a", "b")],
            ..plain.clone()
        };
        assert_eq!(
            hex::encode(with_rule.layout(&[7; 64])),
            format!("{start}000005000000010161010062")
        );
        assert_eq!(
            serde_json::to_string(&plain).unwrap(),
            r#"{"priority":5,"deterministic":true}"#
        );
        assert_eq!(
            serde_json::from_str::<JobTerms>(r#"{"deterministic":true}"#).unwrap(),
            plain
        );
    }

    #[test]
    fn checkpoints_are_of_the_fourth_layout() {
        let start = "07".repeat(64);
        let plain = JobTerms {
            checkpoints: Some(CheckpointTerms::default()),
            ..JobTerms::default()
        };
        assert_eq!(
            hex::encode(plain.layout(&[7; 64])),
            format!("{start}0000000005000000000b2f636865636b706f696e740500000000000000")
        );
        let full = JobTerms {
            deterministic: true,
            checkpoints: Some(CheckpointTerms {
                folder: "/c".to_owned(),
                every: 2,
                best: Some(BestMetric {
                    name: "loss".parse().unwrap(),
                    larger_is_better: true,
                }),
                signal: SaveSignal::Usr2,
                fatal_exit_codes: vec![3],
                resume_from: Some(ResumeSource {
                    job: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
                    ordinal: 9,
                }),
                stall_s: None,
            }),
            ..JobTerms::default()
        };
        let checkpoints = "022f630200000002010301 0104 6c6f7373 01 11111111222243338444555555555555 09000000";
        assert_eq!(
            hex::encode(full.layout(&[7; 64])),
            format!("{start}000000010500000000{}", checkpoints.replace(' ', ""))
        );
        assert_eq!(
            serde_json::to_string(&full).unwrap(),
            concat!(
                r#"{"priority":5,"deterministic":true,"checkpoints":{"folder":"/c","every":2,"#,
                r#""best":{"name":"loss","larger_is_better":true},"signal":"USR2","fatal_exit_codes":[3],"#,
                r#""resume_from":{"job":"11111111-2222-4333-8444-555555555555","ordinal":9}}}"#
            )
        );
        let stopped = JobTerms {
            checkpoints: Some(CheckpointTerms {
                stall_s: Some(600),
                ..CheckpointTerms::default()
            }),
            ..JobTerms::default()
        };
        assert_eq!(
            hex::encode(stopped.layout(&[7; 64])),
            format!("{start}0000000005000000000b2f636865636b706f696e7405000000000000 02 58020000")
                .replace(' ', "")
        );
        let read: JobTerms = serde_json::from_str(r#"{"checkpoints":{}}"#).unwrap();
        assert_eq!(read, plain);
        assert_eq!(
            hex::encode(plain.digest(&[7; 64])),
            "a090c7db42654c1e988085f2c6c030c9fedfc165e15c1528421dc4ef16f82041"
        );
    }

    #[test]
    fn the_start_of_a_program_is_of_the_fifth_layout() {
        let start = "07".repeat(64);
        let plain = JobTerms {
            start: Some(ProgramStart {
                entrypoint: Some(String::new()),
                ..ProgramStart::default()
            }),
            ..JobTerms::default()
        };
        assert_eq!(
            hex::encode(plain.layout(&[7; 64])),
            format!("{start}000000020500000000{}", "00 010000 00 00".replace(' ', ""))
        );
        let full = JobTerms {
            deterministic: true,
            checkpoints: Some(CheckpointTerms::default()),
            start: Some(ProgramStart {
                workdir: Some("/w".to_owned()),
                entrypoint: Some("sh".to_owned()),
                stdin: Some("in".to_owned()),
            }),
            ..JobTerms::default()
        };
        let texts = "0102002f77 0102007368 010200696e 01";
        let checkpoints = "0b2f636865636b706f696e740500000000000000";
        assert_eq!(
            hex::encode(full.layout(&[7; 64])),
            format!("{start}000000030500000000{}{checkpoints}", texts.replace(' ', ""))
        );
        assert_eq!(
            hex::encode(full.digest(&[7; 64])),
            "bbb33da692285382bbd45cd3b76cbd0bab5f147584d0255e99be9352a1347a46"
        );
        assert_eq!(
            serde_json::to_string(&JobTerms {
                checkpoints: None,
                ..full
            })
            .unwrap(),
            concat!(
                r#"{"priority":5,"deterministic":true,"#,
                r#""start":{"workdir":"/w","entrypoint":"sh","stdin":"in"}}"#
            )
        );
        assert_eq!(
            serde_json::from_str::<JobTerms>(r#"{"start":{"entrypoint":""}}"#).unwrap(),
            plain
        );
        let relative = JobTerms {
            start: Some(ProgramStart {
                workdir: Some("w".to_owned()),
                ..ProgramStart::default()
            }),
            ..JobTerms::default()
        };
        let found = relative.find_over_limits("busybox");
        assert_eq!(found.iter().map(|over| over.field).collect::<Vec<_>>(), ["start"]);
    }

    #[test]
    fn the_layout_is_these_bytes() {
        let job = [7; 64];
        let start = "07".repeat(64);
        assert_eq!(
            hex::encode(JobTerms::default().layout(&job)),
            format!("{start}05000000")
        );
        let full_terms = concat!(
            "0a01100e000000000000018051010000000000",
            "011b00000068747470733a2f2f66696c65732e6578616d706c652f612e746172",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "0201000000000000"
        );
        assert_eq!(hex::encode(full().layout(&job)), format!("{start}{full_terms}"));
    }

    #[test]
    fn the_digest_is_these_bytes() {
        assert_eq!(
            hex::encode(JobTerms::default().digest(&[7; 64])),
            "af47647880990cb9dc5e0908bce9376e04cbed82cede049b311d546292dfac66"
        );
        assert_eq!(
            hex::encode(full().digest(&[7; 64])),
            "bb2fe0f074ee783646fde96ccdad15c5fce655793f7954f856545b86337a43ec"
        );
    }

    #[test]
    fn the_json_is_this_text() {
        let text = serde_json::to_string(&full()).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"image_time_limit":3600,"priority":10,"queue_time_limit":86400,"image_archive":"#,
                r#"{"url":"https://files.example/a.tar","sha256":"#,
                r#""sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","length":258}}"#
            )
        );
        assert_eq!(serde_json::from_str::<JobTerms>(&text).unwrap(), full());
        let plain = JobTerms::default();
        assert_eq!(serde_json::to_string(&plain).unwrap(), r#"{"priority":5}"#);
        assert_eq!(serde_json::from_str::<JobTerms>("{}").unwrap(), plain);
    }

    #[test]
    fn terms_that_this_version_does_not_know_are_refused() {
        for text in [
            r#"{"max_price":1}"#,
            r#"{"priority":0}"#,
            r#"{"priority":11}"#,
            r#"{"priority":"5"}"#,
        ] {
            assert!(serde_json::from_str::<JobTerms>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_limit_is_named_by_its_field() {
        let image = ImageId(Digest::of(b"")).to_string();
        let fields = |terms: &JobTerms, image: &str| -> Vec<&'static str> {
            let found = terms.find_over_limits(image);
            found.into_iter().map(|over| over.field).collect()
        };
        assert!(fields(&full(), &image).is_empty());
        assert!(fields(&JobTerms::default(), "busybox").is_empty());
        assert_eq!(fields(&full(), "busybox"), ["image_archive"]);
        type Breaking = fn(&mut JobTerms, &mut ArchiveSource);
        let broken: [(Breaking, &str); 7] = [
            (|terms, _| terms.image_time_limit = Some(0), "image_time_limit"),
            (
                |terms, _| terms.image_time_limit = Some(MAX_IMAGE_SECS + 1),
                "image_time_limit",
            ),
            (
                |terms, _| terms.queue_time_limit = Some(MAX_QUEUE_SECS + 1),
                "queue_time_limit",
            ),
            (|_, archive| archive.length = 0, "image_archive"),
            (|_, archive| archive.length = u64::MAX, "image_archive"),
            (
                |_, archive| archive.url = "file:///etc/passwd".to_owned(),
                "image_archive",
            ),
            (|_, archive| archive.url.push('\n'), "image_archive"),
        ];
        for (spoil, field) in broken {
            let (mut terms, mut archive) = (full(), full().image_archive.unwrap());
            spoil(&mut terms, &mut archive);
            terms.image_archive = Some(archive);
            assert_eq!(fields(&terms, &image), [field]);
        }
    }

    fn any_checkpoints() -> impl Strategy<Value = CheckpointTerms> {
        let best = prop::option::of(("[a-c]{1,3}", any::<bool>()));
        let signal = prop::sample::select(vec![SaveSignal::Term, SaveSignal::Usr1, SaveSignal::Usr2]);
        let codes = prop::collection::vec(any::<u8>(), 0..3);
        let source = prop::option::of((any::<u128>(), any::<u32>()));
        let stall = prop::option::of(any::<u32>());
        ("/[a-c]{0,3}", any::<u32>(), best, signal, codes, source, stall).prop_map(
            |(folder, every, best, signal, fatal_exit_codes, source, stall_s)| CheckpointTerms {
                folder,
                every,
                best: best.map(|(name, larger_is_better)| BestMetric {
                    name: name.parse().unwrap(),
                    larger_is_better,
                }),
                signal,
                fatal_exit_codes,
                resume_from: source.map(|(job, ordinal)| ResumeSource {
                    job: JobId::from_uuid(uuid::Uuid::from_u128(job)),
                    ordinal,
                }),
                stall_s,
            },
        )
    }

    fn any_terms() -> impl Strategy<Value = JobTerms> {
        let archive =
            (".{0,12}", any::<[u8; 32]>(), any::<u64>()).prop_map(|(url, sha256, length)| ArchiveSource {
                url,
                sha256: Digest::from_bytes(sha256),
                length,
            });
        let seconds = || prop::option::of(prop_oneof![0..3_u64, any::<u64>()]);
        let rules = prop::collection::vec(("[a-c]{1,3}", ".{0,8}"), 0..4)
            .prop_map(|rules| rules.iter().map(|(name, pattern)| rule(name, pattern)).collect());
        let archive = prop::option::of(archive);
        let checkpoints = prop::option::of(any_checkpoints());
        let text = || prop::option::of(".{0,3}");
        let start = (text(), text(), text()).prop_map(|(workdir, entrypoint, stdin)| ProgramStart {
            workdir,
            entrypoint,
            stdin,
        });
        (
            seconds(),
            1..=10_u8,
            seconds(),
            archive,
            rules,
            any::<bool>(),
            checkpoints,
            prop::option::of(start),
        )
            .prop_map(
                |(
                    image_time_limit,
                    priority,
                    queue_time_limit,
                    image_archive,
                    metrics,
                    deterministic,
                    checkpoints,
                    start,
                )| {
                    JobTerms {
                        image_time_limit,
                        priority: priority.try_into().unwrap(),
                        queue_time_limit,
                        image_archive,
                        metrics,
                        deterministic,
                        checkpoints,
                        start,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn two_different_terms_never_share_a_layout(
            one in any_terms(), other in any_terms(), jobs: ([u8; 32], [u8; 32]),
        ) {
            let job = |half: [u8; 32]| <[u8; 64]>::try_from([half, half].concat()).unwrap();
            let (first, second) = (job(jobs.0), job(jobs.1));
            prop_assert_eq!(one == other, one.layout(&first) == other.layout(&first));
            prop_assert_eq!(first == second, one.layout(&first) == one.layout(&second));
            prop_assert!(first == second || one.layout(&first) != other.layout(&second));
        }

        #[test]
        fn a_layout_begins_no_other_layout(one in any_terms(), other in any_terms()) {
            let (one_layout, other_layout) = (one.layout(&[7; 64]), other.layout(&[7; 64]));
            prop_assert!(one == other || !other_layout.starts_with(&one_layout));
        }
    }
}
