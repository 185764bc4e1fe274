//! Why bytes did not come or go: what failed, whose fault it is, and its page.

use std::io;

use muster_process::Coded;
use muster_protocol::ErrorCode;
use muster_protocol::job::Fault;
use reqwest::StatusCode;

use crate::target::TargetError;

/// A request, or the body that came of it, failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL, or one that it redirects to, may not be reached by jobs.
    #[error("the address is refused; jobs may reach public addresses only")]
    Refused(#[from] TargetError),
    /// A name that leads into somebody's network.
    #[error("{host} has no address on the public Internet, and jobs may reach no other")]
    NotPublic {
        /// The name.
        host: String,
    },
    /// A name that nobody knows.
    #[error("{host} cannot be resolved; check the name in the URL")]
    Unresolved {
        /// The name.
        host: String,
        /// The resolver's reason.
        source: io::Error,
    },
    /// The server says no.
    #[error("{shown} answers {status}{detail}; {}", advice(*.status))]
    Status {
        /// The URL without its query.
        shown: String,
        /// The answer.
        status: StatusCode,
        /// What the server says about it, if it says it in a way that can be repeated; begins with a space.
        detail: String,
    },
    /// The server does not answer, or not to the end, however often it is asked.
    #[error("{shown} cannot be reached: {what} ({tries} tries)")]
    Unreachable {
        /// The URL without its query.
        shown: String,
        /// How the last try ended.
        what: String,
        /// How often it was tried.
        tries: u32,
    },
    /// A server that sends its visitors around.
    #[error("{shown} redirects more than {limit} times")]
    Redirects {
        /// The first URL without its query.
        shown: String,
        /// How often is allowed.
        limit: usize,
    },
    /// An upload that is redirected where it cannot be followed.
    #[error("{shown} redirects an upload with {status} to another place; sign the URL of that place instead")]
    Moved {
        /// The URL without its query.
        shown: String,
        /// The answer.
        status: StatusCode,
    },
    /// A body that is packed although nobody asked for it.
    #[error("{shown} sends its content encoded as {encoding}, although it was asked for as it is")]
    Encoded {
        /// The URL without its query.
        shown: String,
        /// The header.
        encoding: String,
    },
    /// More bytes than are allowed.
    #[error("{shown} has more than the {limit} bytes that are allowed")]
    TooLarge {
        /// The URL without its query.
        shown: String,
        /// How many are allowed.
        limit: u64,
    },
    /// Other bytes than were promised.
    #[error("{shown} is not what it should be: {what}")]
    Mismatch {
        /// The URL without its query.
        shown: String,
        /// Which promise is broken.
        what: String,
    },
    /// A header of the job that cannot be sent.
    #[error("the header {name:?} {reason}")]
    Header {
        /// Its name, shortened.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The time is over, or the job was called off.
    #[error("the transfer was called off")]
    CalledOff,
    /// This machine's disk.
    #[error("data cannot be kept on this machine")]
    Disk(#[source] io::Error),
    /// This machine cannot even ask.
    #[error("this machine cannot make requests; check its certificates")]
    Client(#[source] reqwest::Error),
}

fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => "check that the URL's signature or the token is valid and has not expired",
        404 | 410 => "check the URL",
        411 | 413 | 400 => "check what the URL was signed for",
        _ => "it will not answer better by being asked again",
    }
}

impl HttpError {
    /// Whose it is.
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

    /// Its page where it concerns an input.
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

    /// Its page where it concerns an output.
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

/// Why inputs could not be put in place.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The offer and the job both brought inputs.
    #[error("the job's volume was sent twice, with the offer and with the request")]
    Twice,
    /// Not base64.
    #[error("volume {index}: the contents are not base64")]
    Base64 {
        /// Position among the job's volumes, from 0.
        index: usize,
        /// Where it goes wrong.
        source: base64::DecodeError,
    },
    /// Not a zip archive, or one that is damaged or encrypted.
    #[error("volume {index}: the archive cannot be read")]
    Zip {
        /// Position among the job's volumes.
        index: usize,
        /// What is wrong with it.
        source: zip::result::ZipError,
    },
    /// An archive that is made to do harm.
    #[error("volume {index}: the archive {reason}")]
    Hostile {
        /// Position among the job's volumes.
        index: usize,
        /// What it does.
        reason: &'static str,
    },
    /// A name that does not belong inside a folder.
    #[error("volume {index}: {name:?} {reason}")]
    Name {
        /// Position among the job's volumes.
        index: usize,
        /// The entry, shortened.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Too many entries in all volumes together.
    #[error("volume {index}: more than {limit} files and folders")]
    TooMany {
        /// Position among the job's volumes.
        index: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// Too many bytes in all volumes together, counted as they were unpacked.
    #[error("volume {index}: more than {limit} bytes unpacked")]
    TooLarge {
        /// Position among the job's volumes.
        index: usize,
        /// How many are allowed.
        limit: u64,
    },
    /// It cannot be fetched.
    #[error("volume {index} cannot be fetched")]
    Fetch {
        /// Position among the job's volumes.
        index: usize,
        /// Why.
        source: HttpError,
    },
    /// The hub answers what it should not.
    #[error("volume {index}: the hub's answer cannot be used: {reason}")]
    Hub {
        /// Position among the job's volumes.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A repository, its kind or its revision is not written as the hub writes them.
    #[error("volume {index}: {what} is not written as the hub writes one")]
    Repository {
        /// Position among the job's volumes.
        index: usize,
        /// Which part.
        what: &'static str,
    },
    /// Patterns that no file of the repository matches.
    #[error("volume {index}: no file of the repository matches allow_patterns")]
    NothingMatches {
        /// Position among the job's volumes.
        index: usize,
    },
    /// The time allowed for inputs is over, or the job was called off.
    #[error("putting inputs in place was called off")]
    CalledOff,
    /// This machine's disk.
    #[error("the inputs cannot be written on this machine")]
    Disk(#[source] io::Error),
}

impl VolumeError {
    /// Whose fault it is.
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
            Self::Hub { .. } => Fault::Network,
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
            Self::Hub { .. } => Some(ErrorCode::InputUnreachable),
            Self::CalledOff | Self::Disk(_) => None,
        }
    }
}

/// Why an output was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The job made no such file.
    #[error("the job left no file {name:?} in /output")]
    Missing {
        /// As the upload names it, shortened.
        name: String,
    },
    /// It is something else than a file in a folder.
    #[error("the output {name:?} {reason}")]
    Name {
        /// As the upload names it, shortened.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Too many bytes.
    #[error("the output {name:?} has more than the {limit} bytes that may be uploaded")]
    TooLarge {
        /// As the upload names it, shortened.
        name: String,
        /// How many are allowed.
        limit: u64,
    },
    /// Too many files or uploads.
    #[error("more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
    /// The server did not take it.
    #[error("the output {name:?} cannot be uploaded")]
    Send {
        /// As the result would name it, shortened.
        name: String,
        /// Why.
        source: HttpError,
    },
    /// The time is over, or the job was called off.
    #[error("uploading was called off")]
    CalledOff,
    /// This machine's disk.
    #[error("the outputs cannot be read or packed on this machine")]
    Disk(#[source] io::Error),
}

impl UploadError {
    /// Whose fault it is.
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
