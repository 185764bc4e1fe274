//! The form of a user's job, which an own job takes over: everything that a miner sees of a job besides its program and
//! its inputs. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::SeededNumbers;
use muster_protocol::job::JobTerms;
use muster_protocol::volume::{Volume, VolumePart};
use muster_protocol::wire::checkpoints::OutputGrant;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{Digest, ExecutorClass, Hotkey, JobId, Timestamp};

use crate::own_draw::fill;
use crate::settings::OwnProgram;

/// The largest archive of inputs that an own job imitates, in bytes.
pub const MAX_INPUT_BYTES: usize = 1024 * 1024;

/// The largest archive of a job that imitates no user's.
const USUAL_INPUT_BYTES: usize = 64 * 1024;
/// The time limits of a job that imitates no user's, in seconds.
const USUAL_SECS: u64 = 300;

/// The form of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobForm {
    /// The class of executor.
    pub class: ExecutorClass,
    /// The account that the miner is shown, which is the user's: an account of one's own would mark the job.
    pub account: String,
    /// The bytes of the archive of inputs inside the request; `None` for a job without inputs.
    pub input_bytes: Option<usize>,
    /// Whether that archive stands in a list of one volume, as ComputeHorde's SDK writes it.
    pub is_listed: bool,
    /// Limit for fetching the inputs, in seconds.
    pub download_time_limit: u64,
    /// Limit for the program, in seconds.
    pub execution_time_limit: u64,
    /// Limit for delivering the outputs, in seconds.
    pub upload_time_limit: u64,
    /// The limit to the first answer, which a job without a session states too, in seconds.
    pub streaming_start_time_limit: u64,
    /// Limit for fetching the image, in seconds; `None` if the terms name none.
    pub image_time_limit: Option<u64>,
    /// Whether the job has the context of a trace.
    pub is_traced: bool,
    /// The place of the streams that the program prints; `None` for a job whose facilitator keeps none.
    pub output: Option<OutputForm>,
}

/// The place of a job's printed streams as its miner sees it, but for the job and the signature, which no other job
/// shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputForm {
    /// The URL up to the folder of all jobs.
    base: String,
    /// The seconds from the job's signature to the end of the URL.
    lifetime_secs: i64,
}

impl OutputForm {
    /// The place of a job's streams; `None` for a job without.
    pub fn of(request: &UserJobRequest) -> Option<Self> {
        let url = &request.muster.as_ref()?.output.as_ref()?.blocks;
        let (base, place) = url.rsplit_once("/blocks/")?;
        let (_, query) = place.split_once("?Expires=")?;
        let until: i64 = query.split_once('&')?.0.parse().ok()?;
        Some(Self {
            base: base.to_owned(),
            lifetime_secs: until.saturating_sub(request.signature.timestamp_ns / 1_000_000_000),
        })
    }

    /// A place of the same form for another job. `drawn` stands for its signature: nothing is written there, because an
    /// own program prints little text.
    pub fn imitate(&self, job: JobId, drawn: Digest, now: Timestamp) -> OutputGrant {
        let until = now.secs().saturating_add(self.lifetime_secs);
        let blocks = format!(
            "{}/blocks/{job}?Expires={until}&Signature={}",
            self.base,
            drawn.hex()
        );
        OutputGrant { blocks }
    }
}

impl JobForm {
    /// The form of a user's job; `None` if an own job cannot have it: it serves requests, has destinations, inputs at
    /// addresses, an image of the user's own, metrics, checkpoints or a start of its own.
    pub fn of(request: &UserJobRequest) -> Option<Self> {
        let terms = request.terms();
        let is_plain = request.streaming_details.is_none()
            && !request.on_trusted_miner
            && request.output_upload.is_none()
            && !request.has_private_image()
            && terms.metrics.is_empty()
            && terms.checkpoints.is_none()
            && terms.start.is_none();
        let is_listed = matches!(request.volume, Some(Volume::MultiVolume(_)));
        let input_bytes = match &request.volume {
            None => None,
            Some(volume) => Some(archive_bytes(volume.clone().into_parts())?),
        };
        is_plain.then(|| Self {
            class: request.executor_class,
            account: request.account(),
            input_bytes,
            is_listed,
            download_time_limit: request.download_time_limit,
            execution_time_limit: request.execution_time_limit,
            upload_time_limit: request.upload_time_limit,
            streaming_start_time_limit: request.streaming_start_time_limit,
            image_time_limit: terms.image_time_limit,
            is_traced: request.traceparent().is_some(),
            output: OutputForm::of(request),
        })
    }

    /// Whether a job with this program can have the form.
    pub fn fits(&self, program: &OwnProgram) -> bool {
        self.class == program.class
            && self.input_bytes.is_some() == program.input_file.is_some()
            && self.execution_time_limit >= program.seconds
    }

    /// A usual form, for a program that no user's form fits.
    pub fn usual(program: &OwnProgram, numbers: &mut SeededNumbers) -> Self {
        let mut account = [0; 32];
        fill(numbers, &mut account);
        let input_bytes = numbers.below(USUAL_INPUT_BYTES);
        Self {
            class: program.class,
            account: Hotkey::from_bytes(account).to_string(),
            input_bytes: program.input_file.as_ref().map(|_| input_bytes),
            is_listed: false,
            download_time_limit: USUAL_SECS,
            execution_time_limit: USUAL_SECS.max(program.seconds),
            upload_time_limit: USUAL_SECS,
            streaming_start_time_limit: 0,
            image_time_limit: None,
            is_traced: true,
            output: None,
        }
    }

    /// The terms of a job with this form.
    pub fn terms(&self) -> JobTerms {
        JobTerms {
            image_time_limit: self.image_time_limit,
            ..JobTerms::default()
        }
    }
}

/// The bytes of the one archive of inputs that the request holds, for `/volume` itself; `None` for any other inputs.
fn archive_bytes(parts: Vec<VolumePart>) -> Option<usize> {
    let [VolumePart::Inline(inline)] = parts.as_slice() else {
        return None;
    };
    // Four letters stand for three bytes.
    if inline.relative_path.is_some() || inline.contents.len() / 4 * 3 > MAX_INPUT_BYTES {
        return None;
    }
    STANDARD.decode(&inline.contents).ok().map(|bytes| bytes.len())
}
