//! The data of an attempt at each stage of its life. Each stage holds everything that the work of that stage needs.

use std::sync::Arc;

use muster_checkpoint_transfer::KeeperHandle;
use muster_containers::docker_engine::ContainerEngine;
use muster_protocol::job::PrintedStreams;
use muster_protocol::wire::executor::SessionSealed;
use muster_protocol::wire::miner::{InitialJobRequest, JobRequest, StreamingDetails};
use muster_protocol::wire::muster::OfferExtension;
use tokio::sync::oneshot;

use crate::attempt_state::Event;
use crate::config::{Config, MachineSize};
use crate::session::OpenSession;
use crate::steps::{CollectedOutputs, OutputHandle, PlacedJob, PreparedImage, RequestedJob};

/// The data of an attempt by its stage.
#[derive(Default)]
pub(super) enum AttemptStage {
    #[default]
    AwaitingOffer,
    /// The miner has offered the job; the engine is being reached.
    Offered(Box<InitialJobRequest>),
    /// The engine answers.
    Prepared(Box<PreparedOffer>),
    /// The request is complete, and its image is there.
    Requested(Arc<RequestedJob>),
    /// The job's folders, inputs and GPUs are there.
    Placed(Box<PlacedStage>),
}

/// An offer on an engine that answers.
pub(super) struct PreparedOffer {
    pub(super) offer: Box<InitialJobRequest>,
    pub(super) engine: ContainerEngine,
    /// The image of the offer or of the request, if either named one.
    pub(super) image: Option<Box<PreparedImage>>,
}

/// A job from its inputs to its outputs.
pub(super) struct PlacedStage {
    pub(super) job: PlacedJob,
    pub(super) session: SessionStage,
    /// The outputs; `None` until they are collected.
    pub(super) outputs: Option<Box<CollectedOutputs>>,
    /// Speaks to the step that takes the job's checkpoints; `None` while there is none.
    pub(super) keeper: Option<KeeperHandle>,
    /// Speaks to the step that sends what the program prints; `None` while there is none.
    pub(super) output: Option<OutputHandle>,
    /// The streams that the program printed, once they are sent.
    pub(super) printed: Option<PrintedStreams>,
    /// The result that waits until the last checkpoint is kept and the output is sent.
    pub(super) held_back: Option<Event>,
}

/// The session of a job by its own stage.
pub(super) enum SessionStage {
    /// The job does not answer requests while it runs.
    NotStreaming,
    Unopened(Box<StreamingDetails>),
    /// The sender passes the miner's attestation on to the step that opens the session. It is `None` once it was used.
    Opening(Option<oneshot::Sender<SessionSealed>>),
    Open(Box<OpenSession>),
    /// The session is being served, or is over.
    Served,
}

impl AttemptStage {
    /// The stage after the engine answered.
    pub(super) fn with_image(self, engine: ContainerEngine, image: Option<Box<PreparedImage>>) -> Self {
        let offer = match self {
            Self::Offered(offer) => offer,
            Self::Prepared(prepared) => prepared.offer,
            Self::AwaitingOffer | Self::Requested(_) | Self::Placed(_) => return self,
        };
        Self::Prepared(Box::new(PreparedOffer { offer, engine, image }))
    }

    /// Takes the request up if its image is there, and lays the job out on a machine of `machine_size`; leaves the
    /// request where it is otherwise.
    pub(super) fn with_request(
        self,
        request: &mut Option<Box<JobRequest>>,
        config: &Config,
        machine_size: impl FnOnce() -> MachineSize,
    ) -> Self {
        let prepared = match self {
            Self::Prepared(prepared) => prepared,
            Self::AwaitingOffer | Self::Offered(_) | Self::Requested(_) | Self::Placed(_) => return self,
        };
        match (*prepared, request.take()) {
            (
                PreparedOffer {
                    offer,
                    engine,
                    image: Some(image),
                },
                Some(job),
            ) if image.name == job.docker_image => {
                let requested = RequestedJob::new(offer, *job, engine, image, config, machine_size());
                Self::Requested(Arc::new(requested))
            }
            (prepared, job) => {
                *request = job;
                Self::Prepared(Box::new(prepared))
            }
        }
    }

    /// The stage of a job whose inputs are in place.
    pub(super) fn of_placed(job: PlacedJob) -> Self {
        let session = match &job.request.offer.streaming_details {
            Some(details) => SessionStage::Unopened(Box::new(details.clone())),
            None => SessionStage::NotStreaming,
        };
        Self::Placed(Box::new(PlacedStage {
            job,
            session,
            outputs: None,
            keeper: None,
            output: None,
            printed: None,
            held_back: None,
        }))
    }

    /// Whether the whole request was taken up.
    pub(super) fn has_request(&self) -> bool {
        self.request().is_some()
    }

    pub(super) fn engine(&self) -> Option<&ContainerEngine> {
        match self {
            Self::AwaitingOffer | Self::Offered(_) => None,
            Self::Prepared(prepared) => Some(&prepared.engine),
            Self::Requested(_) | Self::Placed(_) => self.request().map(|request| &request.engine),
        }
    }

    /// Speaks to the step that takes the job's checkpoints, while there is one.
    pub(super) fn keeper(&self) -> Option<&KeeperHandle> {
        match self {
            Self::AwaitingOffer | Self::Offered(_) | Self::Prepared(_) | Self::Requested(_) => None,
            Self::Placed(placed) => placed.keeper.as_ref(),
        }
    }

    /// Speaks to the step that sends what the program prints, while there is one.
    pub(super) fn output(&self) -> Option<&OutputHandle> {
        match self {
            Self::AwaitingOffer | Self::Offered(_) | Self::Prepared(_) | Self::Requested(_) => None,
            Self::Placed(placed) => placed.output.as_ref(),
        }
    }

    pub(super) fn image(&self) -> Option<&PreparedImage> {
        match self {
            Self::AwaitingOffer | Self::Offered(_) => None,
            Self::Prepared(prepared) => prepared.image.as_deref(),
            Self::Requested(_) | Self::Placed(_) => self.request().map(|request| &*request.image),
        }
    }

    /// How the executor gets the image if it is a private one, as the offer states.
    pub(super) fn private_image(&self) -> Option<OfferExtension> {
        let offer = match self {
            Self::AwaitingOffer => return None,
            Self::Offered(offer) => offer,
            Self::Prepared(prepared) => &prepared.offer,
            Self::Requested(_) | Self::Placed(_) => &self.request()?.offer,
        };
        offer.muster.as_deref().cloned()
    }

    /// The image that the job runs, by its name; the offer's until the request is there.
    pub(super) fn image_name(&self) -> Option<&str> {
        let offer = match self {
            Self::AwaitingOffer => return None,
            Self::Offered(offer) => offer,
            Self::Prepared(prepared) => &prepared.offer,
            Self::Requested(_) | Self::Placed(_) => {
                return self.request().map(|request| request.job.docker_image.as_str());
            }
        };
        offer.docker_image.as_deref()
    }

    fn request(&self) -> Option<&RequestedJob> {
        match self {
            Self::AwaitingOffer | Self::Offered(_) | Self::Prepared(_) => None,
            Self::Requested(request) => Some(request),
            Self::Placed(placed) => Some(&placed.job.request),
        }
    }
}

impl PlacedStage {
    /// Whether the end of the attempt waits for a checkpoint or for the output.
    pub(super) const fn is_awaited(&self) -> bool {
        self.keeper.is_some() || self.output.is_some()
    }
}

impl SessionStage {
    /// Passes the miner's answer on to the step that waits for it, if one does.
    pub(super) fn pass_attestation(&mut self, sealed: SessionSealed) {
        if let Self::Opening(waiting) = self
            && let Some(waiting) = waiting.take()
        {
            // The step may have been called off.
            let _ = waiting.send(sealed);
        }
    }

    /// The session, if it is open and not yet served.
    pub(super) fn take_open(&mut self) -> Option<Box<OpenSession>> {
        match std::mem::replace(self, Self::Served) {
            Self::Open(open) => Some(open),
            other @ (Self::NotStreaming | Self::Unopened(_) | Self::Opening(_) | Self::Served) => {
                *self = other;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_containers::docker_engine::LocalImage;
    use muster_containers::image_leases::Lease;
    use muster_containers::images::LeasedImage;
    use muster_process::{SharedClock, SystemClock, Tasks};
    use muster_protocol::{Digest, ImageId};

    use super::*;
    use crate::fixtures::{self, MACHINE, job, offer};
    use crate::job_layout::JobLayout;

    const CLASS: &str = "always_on.test";

    fn image(name: &str, folder: &std::path::Path) -> Box<PreparedImage> {
        let id = ImageId(Digest::of(b"x"));
        let clock: SharedClock = Arc::new(SystemClock::new());
        Box::new(PreparedImage {
            name: name.to_owned(),
            resolved: LeasedImage {
                image: LocalImage::default_for(id),
                manifest: None,
                lease: Lease::take(folder, id, name, &clock).unwrap(),
            },
        })
    }

    #[tokio::test]
    async fn layout_of_a_job_is_made_once_when_request_and_image_are_there() {
        let (tasks, folder) = (Tasks::new(), tempfile::tempdir().unwrap());
        let engine = fixtures::engine(&tasks, |_| None).await;
        let config = Config::default();
        let mut reads = 0;
        let mut machine_size = || {
            reads += 1;
            MACHINE
        };
        let mut request = None;
        let stage = AttemptStage::Offered(Box::new(offer(CLASS, "")))
            .with_image(engine.clone(), Some(image("other", folder.path())))
            .with_request(&mut request, &config, &mut machine_size);
        request = Some(Box::new(job(CLASS)));
        let stage = stage.with_request(&mut request, &config, &mut machine_size);
        assert!(!stage.has_request(), "another image is there");
        let stage = stage
            .with_image(engine, Some(image("x", folder.path())))
            .with_request(&mut request, &config, &mut machine_size)
            .with_request(&mut request, &config, &mut machine_size);
        let AttemptStage::Requested(requested) = stage else {
            panic!("request and image are there")
        };
        let id = requested.image.resolved.image.id;
        let expected = JobLayout::of(&requested.offer, &requested.job, id, &config, MACHINE);
        assert_eq!(requested.layout, expected);
        assert_eq!(reads, 1);
    }
}
