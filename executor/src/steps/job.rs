//! A job as its steps find it: with its image, with its whole request, and with its inputs in place.

use std::sync::Arc;

use muster_containers::docker_engine::ContainerEngine;
use muster_containers::image_folders::{ImageFolders, UNSEEN};
use muster_containers::images::LeasedImage;
use muster_protocol::job::ProgramStart;
use muster_protocol::wire::miner::{InitialJobRequest, JobImage, JobRequest};

use crate::config::{Config, MachineSize};
use crate::context::AttemptContext;
use crate::job_layout::JobLayout;
use crate::journal::JournaledJob;
use crate::machine::gpu::ClaimedGpus;
use crate::program_input::ProgramInput;
use crate::warm_containers::{AttachedContainer, WarmTemplate};
use crate::workspace::Workspace;

/// An image that stays on this machine for as long as this value lives.
#[derive(Debug)]
pub(crate) struct PreparedImage {
    /// The name that the job gave it.
    pub(crate) name: String,
    pub(crate) resolved: LeasedImage,
}

/// A job whose request is complete and whose image is there.
#[derive(Debug)]
pub(crate) struct RequestedJob {
    pub(crate) offer: Box<InitialJobRequest>,
    pub(crate) job: JobRequest,
    pub(crate) engine: ContainerEngine,
    pub(crate) image: Box<PreparedImage>,
    pub(crate) layout: JobLayout,
}

/// A job that can run: its folders, inputs and GPUs are there.
#[derive(Debug)]
pub(crate) struct PlacedJob {
    pub(crate) request: Arc<RequestedJob>,
    /// The name of its container, which exists already if there is a warm one.
    pub(crate) container: String,
    pub(crate) workspace: Workspace,
    /// The image's folders that the job may write to.
    pub(crate) image_folders: Arc<ImageFolders>,
    /// A container that was started ahead for a job like this one.
    pub(crate) warm: Option<AttachedContainer>,
    /// From which a container for the next job like this one is made.
    pub(super) template: Option<WarmTemplate>,
    /// `None` for a job without GPUs.
    pub(crate) gpus: Option<ClaimedGpus>,
    /// The name of the checkpoint that it begins from, if it does.
    pub(crate) resumed: Option<String>,
    /// The standard input of its program, until the program is started; `None` for an empty one.
    pub(crate) input: Option<ProgramInput>,
}

// === impl PreparedImage ===

impl PreparedImage {
    /// The name of the image and the content that the name stood for, as the result reports them.
    pub(crate) fn to_job_image(&self) -> JobImage {
        JobImage {
            name: self.name.clone(),
            id: self.resolved.image.id,
            manifest: self.resolved.manifest,
        }
    }
}

// === impl RequestedJob ===

impl RequestedJob {
    /// The job of a request that is complete, laid out on a machine of this size.
    pub(crate) fn new(
        offer: Box<InitialJobRequest>,
        job: JobRequest,
        engine: ContainerEngine,
        image: Box<PreparedImage>,
        config: &Config,
        machine: MachineSize,
    ) -> Self {
        let id = image.resolved.image.id;
        Self {
            layout: JobLayout::of(&offer, &job, id, config, machine),
            offer,
            job,
            engine,
            image,
        }
    }

    /// How its program is started; `None` where the image decides.
    pub(crate) fn start(&self) -> Option<&ProgramStart> {
        self.offer.muster.as_ref()?.start.as_ref()
    }
}

// === impl PlacedJob ===

impl PlacedJob {
    /// Gives back what the job took from this machine, and has a warm container made for the next job like it. Returns
    /// the folders, which hold the job's journal. They stay if the container may still be there: the next executor
    /// finds it by them.
    pub(crate) async fn give_back(self, context: &AttemptContext, container_gone: bool) -> Option<Workspace> {
        if let Some(gpus) = self.gpus {
            gpus.give_back(context.clock()).await;
        }
        if !container_gone {
            self.workspace.give_up();
            return None;
        }
        if let (Some(warm), Some(template)) = (&context.process.warm, self.template) {
            warm.replenish(&self.request.engine, template);
        }
        Some(self.workspace)
    }

    /// The UUIDs of the job's GPUs; none for a job without.
    pub(crate) fn gpu_uuids(&self) -> &[String] {
        self.gpus.as_ref().map_or(&[], ClaimedGpus::uuids)
    }

    /// A job that another process began, with its container.
    pub(crate) fn taken_over(
        request: Arc<RequestedJob>,
        workspace: Workspace,
        journaled: &JournaledJob,
        gpus: Option<ClaimedGpus>,
    ) -> Self {
        Self {
            request,
            container: journaled.container.clone(),
            workspace,
            // The container is there, with its mounts.
            image_folders: Arc::new(UNSEEN.clone()),
            warm: None,
            template: None,
            gpus,
            resumed: None,
            input: None,
        }
    }
}
