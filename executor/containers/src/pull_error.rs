//! The reasons for which a pull of an image fails.

use std::time::Duration;

/// The reason for which a pull failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The registry refuses this executor.
    #[error(
        "the registry refuses to give {image} to this executor ({words}); its operator must add or correct the registry's credentials and list the repository in images.login_repositories, or the user must choose a public image"
    )]
    Unauthorised {
        /// The image's name as the job gave it.
        image: String,
        /// The registry's message, cut to a bounded length.
        words: String,
    },
    /// The registry has no such image.
    #[error(
        "the registry has no {image} for this machine ({words}); the user must check name, tag and platform"
    )]
    NotFound {
        /// The image's name as the job gave it.
        image: String,
        /// The registry's message, cut to a bounded length.
        words: String,
    },
    /// The image is for another kind of machine.
    #[error(
        "{image} is for another platform than this machine's ({words}); the user must name an image for linux on its processor"
    )]
    WrongPlatform {
        /// The image's name as the job gave it.
        image: String,
        /// The registry's message, cut to a bounded length.
        words: String,
    },
    /// The engine cannot unpack the image.
    #[error(
        "this executor's engine cannot unpack {image} ({words}); the user must push it again with layers compressed by gzip"
    )]
    Unreadable {
        /// The image's name as the job gave it.
        image: String,
        /// The engine's message, cut to a bounded length.
        words: String,
    },
    /// The image is larger than this executor takes.
    #[error("{image} is larger than the {} MiB that this executor takes; the user must choose a smaller image", max_bytes >> 20)]
    TooLarge {
        /// The image's name as the job gave it.
        image: String,
        /// The bound, in bytes.
        max_bytes: u64,
    },
    /// The registry, or a place to which it leads, is inside a network.
    #[error(
        "the engine may not fetch {image} from there: {words}; the user must choose another registry, or the executor's operator must list it in images.allow"
    )]
    NotPublic {
        /// The image's name as the job gave it.
        image: String,
        /// The refused address and the reason.
        words: String,
    },
    /// The engine has an image under this name that no executor fetched and that differs from the registry's.
    #[error(
        "the engine of this executor has another image under the name {image}; the user may name the image by its digest, or the executor's operator must list it in images.local"
    )]
    OtherImage {
        /// The image's name as the job gave it.
        image: String,
    },
    /// The bytes stopped coming.
    #[error(
        "the registry sent nothing of {image} for {} s; it may be away, or too slow for this executor",
        stall.as_secs()
    )]
    Stalled {
        /// The image's name as the job gave it.
        image: String,
        /// The time without progress after which a pull ends.
        stall: Duration,
    },
    /// The content does not match its digest.
    #[error("the registry sent content for {image} that does not match its digest ({words})")]
    BadDigest {
        /// The image's name as the job gave it.
        image: String,
        /// The engine's message, cut to a bounded length.
        words: String,
    },
    /// The engine's disk is full.
    #[error("the engine's disk has no room for {image} ({words}); its operator must free some")]
    DiskFull {
        /// The image's name as the job gave it.
        image: String,
        /// The engine's message, cut to a bounded length.
        words: String,
    },
    /// A failure that may be temporary: the network, the registry or the engine.
    #[error("{image} could not be pulled ({words})")]
    Interrupted {
        /// The image's name as the job gave it.
        image: String,
        /// The message of the registry or the engine, cut to a bounded length.
        words: String,
    },
}

impl PullError {
    /// Whether a retry may help.
    pub const fn is_recoverable(&self) -> bool {
        match self {
            Self::Interrupted { .. } => true,
            Self::Unauthorised { .. }
            | Self::NotFound { .. }
            | Self::WrongPlatform { .. }
            | Self::Unreadable { .. }
            | Self::TooLarge { .. }
            | Self::NotPublic { .. }
            | Self::OtherImage { .. }
            | Self::Stalled { .. }
            | Self::BadDigest { .. }
            | Self::DiskFull { .. } => false,
        }
    }
}

/// Characters of a registry's message that are passed on.
const MAX_WORDS: usize = 500;

/// A registry's message as a user may see it: one line, of a bounded length, without control characters.
pub(crate) fn make_safe(words: &str) -> String {
    let shown = words.trim().chars().take(MAX_WORDS);
    shown.map(|c| if c.is_control() { ' ' } else { c }).collect()
}
