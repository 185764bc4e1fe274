//! The reasons for which a job's image is not available, and the party at fault.

use muster_process::error::Coded;
use muster_protocol::job::{Fault, ImageFetchFailure};
use muster_protocol::{ErrorCode, ImageId};

use crate::credentials::CredentialsError;
use crate::docker_engine::EngineError;
use crate::image_archive::ArchiveError;
use crate::image_leases::LeaseError;
use crate::pull_error::PullError;
use muster_protocol::image_reference::ReferenceError;

/// The reason for which an image is not available.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The text is not the name of an image.
    #[error(transparent)]
    Name(#[from] ReferenceError),
    /// The image is missing and may not be pulled, or was named by id, which no registry can resolve.
    #[error("the image {0} is neither on this executor nor in an archive it may load")]
    Missing(String),
    /// The engine knows no image by its id.
    #[error(
        "the engine of this executor keeps images in containerd's store, where no image is found by its id ({0}); its \
         operator must set \"features\": {{\"containerd-snapshotter\": false}} in the engine's daemon.json"
    )]
    ManifestStore(ImageId),
    /// The pull failed.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The operator's credentials cannot be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The record of used images failed.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The archive that the job brought does not give its image.
    #[error(transparent)]
    UserArchive(#[from] UserArchiveError),
    /// The process is shutting down.
    #[error("getting the image was interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// The reason for which a user's archive does not give the job's image.
#[derive(Debug, thiserror::Error)]
pub enum UserArchiveError {
    /// The file is no archive of an image.
    #[error("the job's image archive cannot be used; write it with `docker save IMAGE > FILE`, uncompressed")]
    Unreadable(#[from] ArchiveError),
    /// The archive holds several images, of which only one would be known and removed later.
    #[error("the job's image archive holds {0} images; save the job's image alone")]
    SeveralImages(usize),
    /// The archive holds another image.
    #[error("the job's image archive holds {found} instead of {wanted}; save the image that the job names")]
    OtherImage {
        /// The image that the job names.
        wanted: ImageId,
        /// The image in the archive.
        found: ImageId,
    },
    /// The image is for other machines.
    #[error(
        "the image in the job's archive is for {found}, and this executor runs {engine}; build it for {engine}"
    )]
    OtherPlatform {
        /// The platform of the image, as `linux/arm64`.
        found: String,
        /// The platform of the engine.
        engine: String,
    },
    /// The engine does not take the image.
    #[error("the engine does not take the image in the job's archive ({0}); save it again")]
    NotLoaded(String),
}

// === impl ImageError ===

impl ImageError {
    /// Whether a retry may help. A failed pull has been retried already.
    pub fn is_recoverable(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_recoverable(),
            Self::Name(_)
            | Self::Missing(_)
            | Self::ManifestStore(_)
            | Self::Pull(_)
            | Self::Credentials(_)
            | Self::Lease(_)
            | Self::UserArchive(_)
            | Self::Interrupted(_) => false,
        }
    }

    /// The party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Name(_) | Self::Missing(_) | Self::UserArchive(_) => Fault::User,
            // The fault may be the operator's or the user's; the user can choose a public image.
            Self::Pull(
                PullError::NotFound { .. }
                | PullError::Unauthorised { .. }
                | PullError::WrongPlatform { .. }
                | PullError::Unreadable { .. }
                | PullError::NotPublic { .. }
                | PullError::TooLarge { .. },
            ) => Fault::User,
            Self::Pull(PullError::Interrupted { .. } | PullError::Stalled { .. }) => Fault::Nobody,
            Self::Pull(PullError::BadDigest { .. }) => Fault::Network,
            Self::Pull(PullError::DiskFull { .. } | PullError::OtherImage { .. })
            | Self::ManifestStore(_)
            | Self::Credentials(_)
            | Self::Engine(_)
            | Self::Lease(_)
            | Self::Interrupted(_) => Fault::Executor,
        }
    }

    /// The failure of the image or its registry; `None` where this machine failed.
    pub fn fetch_failure(&self) -> Option<ImageFetchFailure> {
        match self {
            Self::Missing(_) | Self::Pull(PullError::NotFound { .. }) => Some(ImageFetchFailure::NoSuchImage),
            Self::Pull(PullError::Unauthorised { .. } | PullError::NotPublic { .. }) => {
                Some(ImageFetchFailure::NoRight)
            }
            // Another machine's engine may take it.
            Self::Pull(PullError::WrongPlatform { .. } | PullError::Unreadable { .. }) => {
                Some(ImageFetchFailure::WrongPlatform)
            }
            Self::Pull(PullError::TooLarge { .. }) => Some(ImageFetchFailure::TooLarge),
            Self::Pull(PullError::Stalled { .. }) => Some(ImageFetchFailure::Stalled),
            Self::Pull(PullError::Interrupted { .. }) => Some(ImageFetchFailure::Unreachable),
            Self::Name(_)
            | Self::ManifestStore(_)
            | Self::UserArchive(_)
            | Self::Pull(
                PullError::BadDigest { .. } | PullError::DiskFull { .. } | PullError::OtherImage { .. },
            )
            | Self::Credentials(_)
            | Self::Engine(_)
            | Self::Lease(_)
            | Self::Interrupted(_) => None,
        }
    }
}

impl Coded for ImageError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Name(_)
            | Self::Missing(_)
            | Self::UserArchive(_)
            | Self::Pull(
                PullError::NotFound { .. }
                | PullError::Unauthorised { .. }
                | PullError::WrongPlatform { .. }
                | PullError::Unreadable { .. }
                | PullError::TooLarge { .. }
                | PullError::NotPublic { .. }
                | PullError::OtherImage { .. }
                | PullError::Stalled { .. }
                | PullError::Interrupted { .. },
            ) => Some(ErrorCode::ImageMissing),
            Self::ManifestStore(_) => Some(ErrorCode::EngineImageStore),
            Self::Engine(error) => error.code(),
            Self::Pull(PullError::BadDigest { .. } | PullError::DiskFull { .. })
            | Self::Credentials(_)
            | Self::Lease(_)
            | Self::Interrupted(_) => None,
        }
    }
}
