//! The template of a warm container: the parts of a job that are not its user's own, and the shape that a job must
//! have to be served by the container.

use std::path::Path;
use std::sync::Arc;

use bollard::models::{ContainerCreateBody, Mount, MountType};
use muster_containers::docker_engine::LocalImage;
use muster_containers::image_folders::ImageFolders;
use muster_protocol::AttemptId;
use muster_protocol::wire::miner::JobRequest;
use serde_json::json;

use crate::config::Policy;
use crate::job_sandbox::{JobContainer, JobFolders, labels};

/// Where a warm container has the program that holds it.
const HOLD: &str = "/.muster-hold";

/// The traits that two jobs must share to be served by containers made alike: everything but the program, its variables
/// and where the folders lie.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContainerShape(ContainerCreateBody);

/// From which a container for the next job of the same shape is made.
#[derive(Clone, Debug)]
pub(crate) struct WarmTemplate {
    shape: ContainerShape,
    /// The job without everything that belongs to its user.
    job: JobRequest,
    image: LocalImage,
    image_folders: Arc<ImageFolders>,
    policy: Policy,
    runtime: String,
}

// === impl WarmTemplate ===

impl WarmTemplate {
    /// The template of a job that is about to run. `None` if the job cannot be put into a container at all.
    pub(crate) fn of(
        job: &JobRequest,
        image: &LocalImage,
        image_folders: Arc<ImageFolders>,
        policy: Policy,
        runtime: &str,
    ) -> Option<Self> {
        let template_job = JobRequest {
            docker_run_cmd: Vec::new(),
            env: indexmap::IndexMap::new(),
            raw_script: job.raw_script.as_ref().map(|_| String::new()),
            volume: None,
            output_upload: None,
            ..job.clone()
        };
        let mut template = Self {
            shape: ContainerShape(ContainerCreateBody::default()),
            job: template_job,
            image: image.clone(),
            image_folders,
            policy,
            runtime: runtime.to_owned(),
        };
        let nowhere = JobFolders::under(Path::new("/"));
        // A job without a program is left to the engine, whose error names the fault.
        encode_program(image, &template.body_of(job, &nowhere)?, "")?;
        let body = template.body(&nowhere)?;
        template.shape = ContainerShape(ContainerCreateBody {
            cmd: None,
            labels: None,
            ..body
        });
        Some(template)
    }

    pub(crate) fn shape(&self) -> &ContainerShape {
        &self.shape
    }

    pub(super) fn image(&self) -> &LocalImage {
        &self.image
    }

    /// Whether the job brings a script, whose file must be there to be mounted.
    pub(super) fn has_script(&self) -> bool {
        self.job.raw_script.is_some()
    }

    pub(super) fn image_folders(&self) -> &Arc<ImageFolders> {
        &self.image_folders
    }

    /// The rights of the job.
    pub(super) const fn policy(&self) -> Policy {
        self.policy
    }

    fn body(&self, folders: &JobFolders) -> Option<ContainerCreateBody> {
        self.body_of(&self.job, folders)
    }

    fn body_of(&self, job: &JobRequest, folders: &JobFolders) -> Option<ContainerCreateBody> {
        let spec = JobContainer {
            resumed: None,
            start: None,
            job,
            image: &self.image,
            image_folders: &self.image_folders,
            policy: self.policy,
            gpus: &[],
            folders,
            runtime: &self.runtime,
            streaming: false,
        };
        spec.body().ok()
    }

    /// The container that waits. It differs from the job's own in its program alone, which is the holder.
    pub(super) fn warm_body(
        &self,
        attempt: AttemptId,
        folders: &JobFolders,
        holder: &Path,
    ) -> Option<ContainerCreateBody> {
        let mut body = self.body(folders)?;
        body.labels = Some(labels(attempt, &folders.root));
        body.entrypoint = Some(vec![HOLD.to_owned()]);
        body.cmd = Some(Vec::new());
        body.attach_stdin = Some(true);
        body.open_stdin = Some(true);
        body.stdin_once = Some(true);
        let mounts = body.host_config.as_mut()?.mounts.as_mut()?;
        mounts.push(Mount {
            typ: Some(MountType::BIND),
            source: Some(holder.display().to_string()),
            target: Some(HOLD.to_owned()),
            read_only: Some(true),
            ..Mount::default()
        });
        Some(body)
    }
}

/// The line by which the holder of a warm container receives its program: that of the job whose own container would
/// be `body`. `None` if neither the job nor its image names a program. The holder begins its own output with `mark`.
pub(crate) fn encode_program(image: &LocalImage, body: &ContainerCreateBody, mark: &str) -> Option<String> {
    let command = body.cmd.as_ref().unwrap_or(&image.command);
    let program: Vec<_> = image.entrypoint.iter().chain(command).collect();
    if program.is_empty() {
        return None;
    }
    let environment = body.env.clone().unwrap_or_default();
    let line = json!({"program": program, "environment": environment, "mark": mark});
    Some(format!("{line}\n"))
}

#[cfg(test)]
mod tests {
    use muster_containers::image_folders::UNSEEN;
    use muster_containers::sandbox::{ResourceLimits, Root, RunAs};
    use muster_protocol::wire::miner::OptionsPreset;
    use muster_protocol::{Digest, ExecutorClass, ImageId};

    use super::*;

    fn job() -> JobRequest {
        JobRequest {
            job_uuid: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
            executor_class: ExecutorClass::AlwaysOnTest,
            docker_image: "x".into(),
            raw_script: None,
            docker_run_options_preset: OptionsPreset::None,
            docker_run_cmd: vec!["-c".into(), "echo \"hé\"".into()],
            env: [("A".to_owned(), "b=c".to_owned())].into(),
            volume: None,
            output_upload: None,
            artifacts_dir: None,
            muster: None,
        }
    }

    fn image(name: &str) -> LocalImage {
        LocalImage {
            entrypoint: vec!["/bin/sh".into()],
            ..LocalImage::default_for(ImageId(Digest::of(name.as_bytes())))
        }
    }

    fn policy() -> Policy {
        Policy {
            allowance: ResourceLimits {
                nano_cpus: 1,
                memory: 2,
                shm: 3,
                tmpfs: 4,
                pids: 5,
                disk: 6,
            },
            run_as: RunAs::Image,
            output: 7,
            root: Root::ReadOnly,
        }
    }

    fn template(job: &JobRequest, image: &LocalImage, policy: Policy) -> WarmTemplate {
        WarmTemplate::of(job, image, Arc::new(UNSEEN.clone()), policy, "").unwrap()
    }

    #[test]
    fn only_jobs_of_one_image_class_and_folders_share_a_shape() {
        let base = template(&job(), &image("a"), policy());
        let mut other = job();
        other.job_uuid = "21111111-2222-4333-8444-555555555555".parse().unwrap();
        other.docker_run_cmd = vec!["different".into()];
        other.env = [("OTHER".to_owned(), "x".to_owned())].into();
        assert_eq!(base.shape, template(&other, &image("a"), policy()).shape);

        assert_ne!(base.shape, template(&job(), &image("b"), policy()).shape);
        let mut stricter = policy();
        stricter.allowance.pids = 4;
        assert_ne!(base.shape, template(&job(), &image("a"), stricter).shape);
        let nobody = Policy {
            run_as: RunAs::Nobody,
            ..policy()
        };
        assert_ne!(base.shape, template(&job(), &image("a"), nobody).shape);
        let writable = Policy {
            root: Root::Writable,
            ..policy()
        };
        assert_ne!(base.shape, template(&job(), &image("a"), writable).shape);
        let artifacts = JobRequest {
            artifacts_dir: Some("/artifacts".into()),
            ..job()
        };
        assert_ne!(base.shape, template(&artifacts, &image("a"), policy()).shape);
        let script = JobRequest {
            raw_script: Some("print(1)".into()),
            ..job()
        };
        assert_ne!(base.shape, template(&script, &image("a"), policy()).shape);
        let folders = ImageFolders::new(None, Some("/root".to_owned()), []);
        let at_home = WarmTemplate::of(&job(), &image("a"), Arc::new(folders), policy(), "").unwrap();
        assert_ne!(base.shape, at_home.shape);
        let gvisor =
            WarmTemplate::of(&job(), &image("a"), Arc::new(UNSEEN.clone()), policy(), "runsc").unwrap();
        assert_ne!(base.shape, gvisor.shape);
    }

    #[test]
    fn a_warm_container_differs_from_the_jobs_own_in_its_program_alone() {
        let template = template(&job(), &image("a"), policy());
        let attempt = job().job_uuid;
        let folders = JobFolders::under(Path::new("/work/x"));
        let body = template
            .warm_body(attempt, &folders, Path::new("/opt/muster-hold"))
            .unwrap();
        assert_eq!(body.entrypoint, Some(vec![HOLD.to_owned()]));
        let own = vec!["MUSTER_PROGRESS=/muster/progress.jsonl".to_owned()];
        assert_eq!(
            (&body.cmd, &body.env),
            (&Some(vec![]), &Some(own)),
            "none of its user's"
        );
        let spec = JobContainer {
            resumed: None,
            start: None,
            job: &job(),
            image: &image("a"),
            image_folders: &UNSEEN,
            policy: policy(),
            gpus: &[],
            folders: &folders,
            runtime: "",
            streaming: false,
        };
        let mut host = body.host_config.unwrap();
        let holder = host.mounts.as_mut().unwrap().pop().unwrap();
        assert_eq!(
            (holder.target.as_deref(), holder.read_only),
            (Some(HOLD), Some(true))
        );
        assert_eq!(Some(host), spec.body().unwrap().host_config);
    }

    #[test]
    fn the_program_is_encoded_as_the_holder_reads_it() {
        let sealed = ContainerCreateBody {
            cmd: Some(job().docker_run_cmd),
            env: Some(vec!["A=b=c".into(), "GONE".into()]),
            ..ContainerCreateBody::default()
        };
        // As in images/hold/src/lib.rs.
        let golden = "{\"program\":[\"/bin/sh\",\"-c\",\"echo \\\"hé\\\"\"],\"environment\":[\"A=b=c\",\"GONE\"],\"mark\":\"m\"}\n";
        assert_eq!(encode_program(&image("a"), &sealed, "m").unwrap(), golden);
        let own = LocalImage {
            command: vec!["own".into()],
            ..image("a")
        };
        let without = ContainerCreateBody::default();
        assert!(
            encode_program(&own, &without, "m")
                .unwrap()
                .contains("[\"/bin/sh\",\"own\"]")
        );
        let none = LocalImage::default_for(own.id);
        assert_eq!(encode_program(&none, &without, "m"), None);
    }
}
