//! Translates a job in ComputeHorde's fields into the sandbox of [`muster_containers::sandbox`] that its program runs
//! in.

use std::path::{Path, PathBuf};

use bollard::models::ContainerCreateBody;
use muster_checkpoints::resume::batch_scale;
use muster_containers::docker_engine::LocalImage;
use muster_containers::host_files::HostFiles;
use muster_containers::image_folders::ImageFolders;
use muster_containers::sandbox::{Bind, Gpus, Sandbox, is_system};
pub use muster_containers::sandbox::{LABEL_ATTEMPT, LABEL_EXECUTOR, SandboxError, labels};
use muster_protocol::job::{CheckpointTerms, ProgramStart};
use muster_protocol::wire::checkpoints::{CheckpointOrder, OutputOrder};
use muster_protocol::wire::miner::{JobRequest, OptionsPreset};
use muster_protocol::{ExecutorClass, ExecutorToken, ImageId};

use crate::config::Policy;

const SCRIPT: &str = "/script.py";
/// The folder inside the container where a streaming job puts its socket, and another job reports its progress.
pub const SOCKETS: &str = "/muster";
/// The name of the file to which a program appends its progress, in [`SOCKETS`].
pub const PROGRESS_FILE: &str = "progress.jsonl";
/// The variable with the path of that file, for programs.
const PROGRESS_VARIABLE: (&str, &str) = ("MUSTER_PROGRESS", "/muster/progress.jsonl");

/// The folders of one job on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFolders {
    /// The root of the others.
    pub root: PathBuf,
    /// The root of the folders that the job may fill: `root`, or the job's own file system in it.
    pub data: PathBuf,
    /// Mounted at `/volume`.
    pub volume: PathBuf,
    /// Mounted at `/output`.
    pub output: PathBuf,
    /// Mounted at `/specs`, as ComputeHorde's jobs expect.
    pub specs: PathBuf,
    /// Mounted at the job's `artifacts_dir`.
    pub artifacts: PathBuf,
    /// The file of the job's script, if it brings one.
    pub script: PathBuf,
    /// Mounted at `/etc/hosts` and `/etc/hostname`.
    pub host_files: HostFiles,
    /// Mounted at [`SOCKETS`] for streaming jobs.
    pub sockets: PathBuf,
    /// Mounted at [`SOCKETS`] for other jobs: the program's own report of its progress.
    pub report: PathBuf,
    /// Mounted at the job's folder of checkpoints, if it leaves any.
    pub checkpoint: PathBuf,
    /// Files of the image, laid out for this job and mounted where the image has them.
    pub image_files: PathBuf,
    /// Copies of what the job prints. Not mounted.
    pub logs: PathBuf,
}

/// Everything that a job's container is made from.
#[derive(Clone, Copy, Debug)]
pub struct JobContainer<'a> {
    /// The job, with its program.
    pub job: &'a JobRequest,
    /// How its program is started; `None` where the image decides.
    pub start: Option<&'a ProgramStart>,
    /// The image, by content: a tag may change under a running job.
    pub image: &'a LocalImage,
    /// The image's folders that the job may write to.
    pub image_folders: &'a ImageFolders,
    /// The rights of the job.
    pub policy: Policy,
    /// The UUIDs of the GPUs that were claimed for it.
    pub gpus: &'a [String],
    /// The folders that are mounted.
    pub folders: &'a JobFolders,
    /// The runtime of jobs without a GPU; empty for the engine's default.
    pub runtime: &'a str,
    /// Whether the job answers requests while it runs, at a socket.
    pub streaming: bool,
    /// The name of the checkpoint that the job begins from, if it does.
    pub resumed: Option<&'a str>,
}

/// The command of a job; `None` for its image's own.
pub(crate) fn command(job: &JobRequest) -> Option<Vec<String>> {
    match (job.docker_run_cmd.is_empty(), &job.raw_script) {
        (false, _) => Some(job.docker_run_cmd.clone()),
        (true, Some(_)) => Some(vec!["python".to_owned(), SCRIPT.to_owned()]),
        (true, None) => None,
    }
}

/// Whether a job of this class gets GPUs.
pub fn wants_gpu(job: &JobRequest, class: ExecutorClass) -> bool {
    match job.docker_run_options_preset {
        OptionsPreset::NvidiaAll => class.has_gpu(),
        OptionsPreset::None | OptionsPreset::Unknown => false,
    }
}

/// The order about the job's checkpoints; `None` for a job without.
pub fn checkpoint_order(job: &JobRequest) -> Option<&CheckpointOrder> {
    job.muster.as_ref()?.checkpoints.as_ref()
}

/// The order about the streams that the job's program prints; `None` for a job whose facilitator keeps none.
pub fn output_order(job: &JobRequest) -> Option<&OutputOrder> {
    job.muster.as_ref()?.output.as_ref()
}

/// Whether the folder of checkpoints of this job may be mounted: it is a plain path, and covers neither the system nor
/// another mount of the job.
pub fn is_mountable(job: &JobRequest, order: &CheckpointOrder) -> bool {
    let Ok(artifacts) = artifacts_dir(job) else {
        return false;
    };
    let script = job.raw_script.as_ref().map(|_| SCRIPT);
    let mut others = ["/volume", "/output", "/specs", SOCKETS]
        .into_iter()
        .chain(artifacts.as_deref())
        .chain(script);
    let apart = |other: &str| {
        let below = |path: &str, folder: &str| path == folder || path.starts_with(&format!("{folder}/"));
        !below(&order.folder, other) && !below(other, &order.folder)
    };
    let terms = CheckpointTerms {
        folder: order.folder.clone(),
        ..CheckpointTerms::default()
    };
    terms.find_flaw().is_none() && !is_system(&order.folder) && others.all(apart)
}

/// The name of a lease's container, as ComputeHorde's tools expect it.
pub fn container_name(token: &ExecutorToken) -> String {
    format!("ch-{token}-job")
}

impl JobFolders {
    /// The paths of the folders below `root`. Creates nothing.
    pub fn under(root: &Path) -> Self {
        Self::with_data(root, root)
    }

    /// The paths of the folders below `root`, of which the job may fill those below `data`. Creates nothing.
    pub fn with_data(root: &Path, data: &Path) -> Self {
        Self {
            root: root.to_owned(),
            data: data.to_owned(),
            volume: data.join("volume"),
            output: data.join("output"),
            specs: data.join("specs"),
            artifacts: data.join("artifacts"),
            script: root.join("script.py"),
            host_files: HostFiles::under(root),
            sockets: data.join("sockets"),
            report: data.join("report"),
            checkpoint: data.join("checkpoint"),
            image_files: data.join("image"),
            logs: data.join("logs"),
        }
    }
}

/// The job's `artifacts_dir` as a plain absolute path; `None` if it has none.
///
/// # Errors
/// The path is relative, contains `..`, or covers a folder of the system.
pub fn artifacts_dir(job: &JobRequest) -> Result<Option<String>, SandboxError> {
    let Some(text) = job.artifacts_dir.as_deref().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let refused = || SandboxError::ArtifactsDir(text.chars().take(200).collect());
    let trimmed = text.trim_end_matches('/');
    let parts = trimmed.strip_prefix('/').ok_or_else(refused)?;
    let plain =
        |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255 && !part.contains(['\0', '\n']);
    if !parts.split('/').all(plain) || trimmed.len() > 1_024 || is_system(trimmed) {
        return Err(refused());
    }
    Ok(Some(trimmed.to_owned()))
}

/// The folder that is mounted at `artifacts_dir`, which may be the place of another mount of the job.
pub fn artifacts_folder<'a>(folders: &'a JobFolders, artifacts_dir: &str) -> &'a Path {
    match artifacts_dir {
        "/volume" => &folders.volume,
        "/output" => &folders.output,
        "/specs" => &folders.specs,
        SOCKETS => &folders.report,
        _ => &folders.artifacts,
    }
}

impl JobContainer<'_> {
    /// The request to the engine that creates the container.
    ///
    /// # Errors
    /// The job asks for something that no sandbox may have.
    pub fn body(&self) -> Result<ContainerCreateBody, SandboxError> {
        let environment = self.job.env.iter();
        let (variable, file) = PROGRESS_VARIABLE;
        let reports = !self.streaming && !self.job.env.contains_key(variable);
        let checkpoints = self.checkpoint_environment();
        // The user's own value of a variable stands.
        let checkpoints = checkpoints
            .iter()
            .filter(|(name, _)| !self.job.env.contains_key(*name));
        let sandbox = Sandbox {
            image: self.image,
            command: command(self.job),
            environment: environment
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .chain(reports.then_some((variable, file)))
                .chain(checkpoints.map(|(name, value)| (*name, value.as_str())))
                .collect(),
            binds: self.binds()?,
            host_files: &self.folders.host_files,
            labels: labels(self.job.job_uuid, &self.folders.root),
            image_folders: self.image_folders,
            image_files: &self.folders.image_files,
            allowance: self.policy.allowance,
            runtime: self.runtime,
            gpus: match self.gpus {
                [] => Gpus::None,
                uuids => Gpus::Selected(uuids),
            },
            run_as: self.policy.run_as,
            root: self.policy.root,
        };
        let mut body = sandbox.container()?;
        if let Some(start) = self.start {
            set_start(&mut body, start);
        }
        Ok(body)
    }

    /// The variables by which a program learns of its checkpoints; none for a job without.
    fn checkpoint_environment(&self) -> Vec<(&'static str, String)> {
        let Some(order) = checkpoint_order(self.job).filter(|_| !self.streaming) else {
            return Vec::new();
        };
        let resumed = self.resumed.map(|name| format!("{}/{name}", order.folder));
        let mut variables = vec![
            ("MUSTER_CHECKPOINT_DIR", order.folder.clone()),
            ("MUSTER_CHECKPOINT_EVERY", order.every.to_string()),
            ("MUSTER_ATTEMPT", order.attempt.to_string()),
            ("MUSTER_BATCH_SCALE", batch_scale(order.halvings).to_owned()),
        ];
        variables.extend(resumed.map(|path| ("MUSTER_RESUME", path)));
        variables
    }

    fn binds(&self) -> Result<Vec<Bind>, SandboxError> {
        let folders = self.folders;
        // Writable, as in ComputeHorde, whose jobs unpack and cache next to their inputs. The files belong to this
        // attempt.
        let mut binds = vec![
            bind(&folders.volume, "/volume"),
            bind(&folders.output, "/output"),
            bind(&folders.specs, "/specs"),
        ];
        if let Some(target) = artifacts_dir(self.job)? {
            let source = artifacts_folder(folders, &target);
            if source == folders.artifacts {
                binds.push(bind(source, &target));
            }
        }
        let exchange = if self.streaming {
            &folders.sockets
        } else {
            &folders.report
        };
        binds.push(bind(exchange, SOCKETS));
        if let Some(order) = checkpoint_order(self.job).filter(|_| !self.streaming) {
            binds.push(bind(&folders.checkpoint, &order.folder));
        }
        if self.job.raw_script.is_some() {
            binds.push(Bind {
                writable: false,
                ..bind(&folders.script, SCRIPT)
            });
        }
        Ok(binds)
    }
}

/// Sets how the program is started, in the engine's words, which are those of `docker run`: an entry point of one empty
/// text is none at all, and the image's arguments are not used beside another entry point than its own.
fn set_start(body: &mut ContainerCreateBody, start: &ProgramStart) {
    body.working_dir.clone_from(&start.workdir);
    body.entrypoint = start.entrypoint.clone().map(|program| vec![program]);
    let has_input = start.stdin.is_some().then_some(true);
    body.attach_stdin = has_input;
    body.open_stdin = has_input;
    // The end of the connection that feeds it is the end of the input.
    body.stdin_once = has_input;
}

fn bind(source: &Path, target: &str) -> Bind {
    Bind {
        source: source.to_owned(),
        target: target.to_owned(),
        writable: true,
    }
}

/// The name of an image with its id, for messages.
pub fn image_label(name: &str, id: ImageId) -> String {
    if name == id.to_string() {
        name.to_owned()
    } else {
        format!("{name} ({id})")
    }
}

#[cfg(test)]
mod tests;
