//! The errors of transfers: the operation that failed, the party at fault, and the page of the error code.

use std::io;

use muster_process::Coded;
use muster_protocol::ErrorCode;
use muster_protocol::job::Fault;
use reqwest::StatusCode;

use crate::found_outputs::FoundOutputs;
use crate::job_url::TargetError;

/// A request or the transfer of its body failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Jobs may not reach the address in the URL, or one that it redirects to.
    #[error("the address is refused; jobs may reach public addresses only")]
    Refused(#[from] TargetError),
    /// A name that only resolves to addresses outside the public Internet.
    #[error("{host} has no address on the public Internet, and jobs may reach no other")]
    NotPublic {
        /// The host in the URL.
        host: String,
    },
    /// A name that does not resolve.
    #[error("{host} cannot be resolved; check the name of the host")]
    Unresolved {
        /// The host in the URL.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The server answered with an error status.
    #[error("{shown} answers {status}{detail}; {}", advice(*.status))]
    Status {
        /// The URL without its query.
        shown: String,
        /// The status of the answer.
        status: StatusCode,
        /// The error that the server names in a header or body, cleaned and shortened; empty, or begins with a space.
        detail: String,
    },
    /// The server did not answer, or broke off, in every try.
    #[error("{shown} cannot be reached: {what} ({tries} tries)")]
    Unreachable {
        /// The URL without its query.
        shown: String,
        /// The failure of the last try.
        what: String,
        /// Number of tries.
        tries: u32,
    },
    /// Too many redirects.
    #[error("{shown} redirects more than {limit} times")]
    Redirects {
        /// The first URL without its query.
        shown: String,
        /// The allowed number of redirects.
        limit: usize,
    },
    /// An upload that is redirected by another status or to another host than can be followed.
    #[error(
        "{shown} redirects an upload with {status} to an address that cannot be followed; sign the URL of that address instead"
    )]
    Moved {
        /// The URL without its query.
        shown: String,
        /// The status of the answer.
        status: StatusCode,
    },
    /// The server sent a content encoding that was not requested.
    #[error("{shown} sends its content encoded as {encoding}, although no encoding was requested")]
    Encoded {
        /// The URL without its query.
        shown: String,
        /// The value of the header `Content-Encoding`.
        encoding: String,
    },
    /// The body exceeds the limit.
    #[error("{shown} has more than the {limit} bytes that are allowed")]
    TooLarge {
        /// The URL without its query.
        shown: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// The content differs from the promised length or digest.
    #[error("{shown} does not have the expected content: {what}")]
    Mismatch {
        /// The URL without its query.
        shown: String,
        /// The difference as text: the expected and the actual length or digest.
        what: String,
    },
    /// A header of the job that cannot be sent.
    #[error("the header {name:?} {reason}")]
    Header {
        /// Name of the header, shortened.
        name: String,
        /// The mistake in the header.
        reason: &'static str,
    },
    /// The time limit has passed, or the job was cancelled.
    #[error("the transfer was cancelled")]
    CalledOff,
    /// This machine's disk failed.
    #[error("the data cannot be stored on this machine")]
    Disk(#[source] io::Error),
    /// No TLS client can be made on this machine.
    #[error("this machine cannot make requests; check its certificates")]
    Client(#[source] reqwest::Error),
}

fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => "check that the URL's signature or the token is valid and has not expired",
        404 | 410 => "check the URL",
        411 | 413 | 400 => "check what the URL was signed for",
        _ => "a retry will not help",
    }
}

impl HttpError {
    /// The party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Refused(_)
            | Self::NotPublic { .. }
            | Self::Unresolved { .. }
            | Self::Status { .. }
            | Self::Redirects { .. }
            | Self::Moved { .. }
            | Self::Encoded { .. }
            | Self::TooLarge { .. }
            | Self::Mismatch { .. }
            | Self::Header { .. } => Fault::User,
            Self::Unreachable { .. } => Fault::Network,
            Self::CalledOff | Self::Disk(_) | Self::Client(_) => Fault::Executor,
        }
    }

    /// The error code where the failure concerns an input.
    pub(crate) fn input_code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(_) | Self::NotPublic { .. } => Some(ErrorCode::AddressRefused),
            Self::Unreachable { .. } | Self::Unresolved { .. } => Some(ErrorCode::InputUnreachable),
            Self::Status { .. } | Self::Redirects { .. } | Self::Moved { .. } | Self::Header { .. } => {
                Some(ErrorCode::InputDenied)
            }
            Self::Mismatch { .. } | Self::Encoded { .. } => Some(ErrorCode::InputMismatch),
            Self::TooLarge { .. } => Some(ErrorCode::VolumeRefused),
            Self::CalledOff | Self::Disk(_) | Self::Client(_) => None,
        }
    }

    /// The error code where the failure concerns an output.
    pub(crate) fn output_code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(_) | Self::NotPublic { .. } => Some(ErrorCode::AddressRefused),
            Self::Unreachable { .. } | Self::Unresolved { .. } => Some(ErrorCode::UploadUnreachable),
            Self::Status { .. }
            | Self::Redirects { .. }
            | Self::Moved { .. }
            | Self::Header { .. }
            | Self::Mismatch { .. }
            | Self::Encoded { .. }
            | Self::TooLarge { .. } => Some(ErrorCode::UploadRefused),
            Self::CalledOff | Self::Disk(_) | Self::Client(_) => None,
        }
    }
}

/// The inputs of a job could not be put in place.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Both the offer and the request have a volume.
    #[error("the job's volume was sent twice, with the offer and with the request")]
    Twice,
    /// The contents are not base64.
    #[error("volume {index}: the contents are not base64")]
    Base64 {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// The decoder's error.
        source: base64::DecodeError,
    },
    /// The contents are not a zip archive, or it is damaged or encrypted.
    #[error("volume {index}: the archive cannot be read")]
    Zip {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// The reader's error.
        source: zip::result::ZipError,
    },
    /// A malicious archive.
    #[error("volume {index}: the archive {reason}")]
    Hostile {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// The forbidden property.
        reason: &'static str,
    },
    /// A name that leads outside the folder or is not a valid path.
    #[error("volume {index}: {name:?} {reason}")]
    Name {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// Name of the entry, shortened.
        name: String,
        /// The mistake in the name.
        reason: &'static str,
    },
    /// All volumes together have too many entries.
    #[error("volume {index}: more than {limit} files and folders")]
    TooMany {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// The allowed number of entries.
        limit: usize,
    },
    /// All volumes together have too many bytes, counted as they were unpacked.
    #[error("volume {index}: more than {limit} bytes unpacked")]
    TooLarge {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// The limit in bytes.
        limit: u64,
    },
    /// The volume cannot be fetched.
    #[error("volume {index} cannot be fetched")]
    Fetch {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// The failure of the request.
        source: HttpError,
    },
    /// The Hugging Face hub's answer is malformed.
    #[error("volume {index}: the hub's answer cannot be used: {reason}")]
    HubClient {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// The mistake in the answer.
        reason: String,
    },
    /// A repository, its type or its revision is not in the form that the Hugging Face hub uses.
    #[error("volume {index}: {what} is not in the form that the hub uses")]
    Repository {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// The malformed part.
        what: &'static str,
    },
    /// No file of the repository matches the patterns.
    #[error("volume {index}: no file of the repository matches allow_patterns")]
    NothingMatches {
        /// Position among the job's volumes, from 0.
        index: usize,
    },
    /// The time limit for inputs has passed, or the job was cancelled.
    #[error("the transfer of inputs was cancelled")]
    CalledOff,
    /// This machine's disk failed.
    #[error("the inputs cannot be written on this machine")]
    Disk(#[source] io::Error),
}

impl VolumeError {
    /// The party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Twice
            | Self::Base64 { .. }
            | Self::Zip { .. }
            | Self::Hostile { .. }
            | Self::Name { .. }
            | Self::TooMany { .. }
            | Self::TooLarge { .. }
            | Self::Repository { .. }
            | Self::NothingMatches { .. } => Fault::User,
            Self::Fetch { source, .. } => source.fault(),
            Self::HubClient { .. } => Fault::Network,
            Self::CalledOff | Self::Disk(_) => Fault::Executor,
        }
    }

    pub(crate) fn fetch(index: usize) -> impl Fn(HttpError) -> Self {
        move |source| match source {
            HttpError::CalledOff => Self::CalledOff,
            HttpError::Disk(source) => Self::Disk(source),
            source @ (HttpError::Refused(_)
            | HttpError::NotPublic { .. }
            | HttpError::Unresolved { .. }
            | HttpError::Status { .. }
            | HttpError::Unreachable { .. }
            | HttpError::Redirects { .. }
            | HttpError::Moved { .. }
            | HttpError::Encoded { .. }
            | HttpError::TooLarge { .. }
            | HttpError::Mismatch { .. }
            | HttpError::Header { .. }
            | HttpError::Client(_)) => Self::Fetch { index, source },
        }
    }
}

impl Coded for VolumeError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Twice
            | Self::Base64 { .. }
            | Self::Zip { .. }
            | Self::Hostile { .. }
            | Self::Name { .. }
            | Self::TooMany { .. }
            | Self::TooLarge { .. }
            | Self::Repository { .. }
            | Self::NothingMatches { .. } => Some(ErrorCode::VolumeRefused),
            Self::Fetch { source, .. } => source.input_code(),
            Self::HubClient { .. } => Some(ErrorCode::InputUnreachable),
            Self::CalledOff | Self::Disk(_) => None,
        }
    }
}

/// An output could not be uploaded.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The job did not write the file.
    #[error("the job left no file {name:?} in /output; {found}")]
    Missing {
        /// Path of the output as the upload has it, shortened.
        name: String,
        /// The files that it left.
        found: FoundOutputs,
    },
    /// The output is not a regular file, or its path is not valid.
    #[error("the output {name:?} {reason}")]
    Name {
        /// Path of the output as the upload has it, shortened.
        name: String,
        /// The mistake, as a predicate whose subject is the name.
        reason: &'static str,
    },
    /// The output exceeds the limit.
    #[error("the output {name:?} has more than the {limit} bytes that may be uploaded")]
    TooLarge {
        /// Path of the output as the upload has it, shortened.
        name: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// Too many files or uploads.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The counted thing: files or uploads.
        what: &'static str,
        /// The allowed number.
        limit: usize,
    },
    /// The server did not accept the output.
    #[error("the output {name:?} cannot be uploaded")]
    Send {
        /// Name of the output in the job's result, shortened.
        name: String,
        /// The failure of the request.
        source: HttpError,
    },
    /// The time limit has passed, or the job was cancelled.
    #[error("the upload was cancelled")]
    CalledOff,
    /// This machine's disk failed.
    #[error("the outputs cannot be read or packed on this machine")]
    Disk(#[source] io::Error),
}

impl UploadError {
    /// The party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Missing { .. } | Self::Name { .. } | Self::TooLarge { .. } | Self::TooMany { .. } => {
                Fault::User
            }
            Self::Send { source, .. } => source.fault(),
            Self::CalledOff | Self::Disk(_) => Fault::Executor,
        }
    }
}

impl Coded for UploadError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Missing { .. } | Self::Name { .. } | Self::TooLarge { .. } | Self::TooMany { .. } => {
                Some(ErrorCode::UploadRefused)
            }
            Self::Send { source, .. } => source.output_code(),
            Self::CalledOff | Self::Disk(_) => None,
        }
    }
}
