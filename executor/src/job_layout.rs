//! The layout of one job on this machine: the decisions that its steps share, made once when its request has arrived.
//! Pure.

use muster_checkpoints::TreeLimits;
use muster_containers::sandbox::RunAs;
use muster_protocol::ImageId;
use muster_protocol::wire::miner::{InitialJobRequest, JobRequest};

use crate::attempt_state::{StageLimits, StreamingMode};
use crate::config::{Config, MachineSize, Policy};
use crate::job_sandbox::wants_gpu;

/// The decisions about one job that its steps share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobLayout {
    /// The rights of the job in its sandbox.
    pub(crate) policy: Policy,
    /// The time limits of the job's stages.
    pub(crate) limits: StageLimits,
    /// How the job's session ends; `None` for a job that does not answer requests.
    pub(crate) streaming: Option<StreamingMode>,
    /// Whether the job gets GPUs.
    pub(crate) has_gpus: bool,
    /// The bounds on one checkpoint: it fits on the job's own disk.
    pub(crate) checkpoint: TreeLimits,
}

impl JobLayout {
    /// The layout of a job of this image on a machine of this size.
    pub(crate) fn of(
        offer: &InitialJobRequest,
        job: &JobRequest,
        image: ImageId,
        config: &Config,
        machine: MachineSize,
    ) -> Self {
        let class = offer.executor_class;
        let streaming = StreamingMode::of(offer);
        let policy = config.policy(class, image, machine);
        let policy = match streaming {
            // A sealed session runs a whitelisted image, which never chooses its own user.
            Some(StreamingMode::Sealed) => Policy {
                run_as: RunAs::Nobody,
                ..policy
            },
            Some(StreamingMode::Direct) | None => policy,
        };
        Self {
            policy,
            limits: StageLimits::of(offer),
            streaming,
            has_gpus: wants_gpu(job, class),
            checkpoint: TreeLimits {
                bytes: policy.allowance.disk,
                ..TreeLimits::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_containers::sandbox::{ResourceLimits, Root};
    use muster_process::config::parse;
    use muster_protocol::Digest;

    use super::*;
    use crate::fixtures::{MACHINE, job, offer};

    const CONFIG: &str = "[class.\"always_on.llm.a6000\"]\ncpus = 4.0\nmemory_mib = 8192\nshm_mib = 2048\n\
        tmpfs_mib = 512\npids = 1024\ndisk_mib = 10240\nwritable_root = true\n";

    fn layout(class: &str, extra: &str) -> JobLayout {
        let config = parse::<Config>(CONFIG, "executor.toml").unwrap();
        let image = ImageId(Digest::of(b"x"));
        JobLayout::of(&offer(class, extra), &job(class), image, &config, MACHINE)
    }

    #[test]
    fn layout_of_a_gpu_class_is_golden() {
        let expected = JobLayout {
            policy: Policy {
                allowance: ResourceLimits {
                    nano_cpus: 4_000_000_000,
                    memory: 8 << 30,
                    shm: 2 << 30,
                    tmpfs: 512 << 20,
                    pids: 1_024,
                    disk: 10 << 30,
                },
                run_as: RunAs::Image,
                root: Root::Writable,
                output: 1 << 30,
            },
            limits: StageLimits {
                leeway: Duration::from_secs(5),
                download: Duration::ZERO,
                execution: Duration::from_secs(60),
                upload: Duration::ZERO,
                streaming_start: Duration::from_secs(60),
            },
            streaming: None,
            has_gpus: true,
            checkpoint: TreeLimits {
                entries: 100_000,
                bytes: 10 << 30,
            },
        };
        assert_eq!(layout("always_on.llm.a6000", ""), expected);
    }

    #[test]
    fn layout_of_a_default_class_takes_the_machines_size() {
        let layout = layout("always_on.test", "");
        let allowance = layout.policy.allowance;
        assert_eq!(
            (allowance.nano_cpus, allowance.memory),
            (16_000_000_000, 80 << 30)
        );
        assert_eq!(layout.checkpoint.bytes, 20_480 << 20);
        assert!(!layout.has_gpus, "the class has none");
    }

    #[test]
    fn streaming_job_runs_as_its_images_user_and_sealed_session_as_nobody() {
        let direct = layout(
            "always_on.llm.a6000",
            r#","streaming_details":{"public_key":"x"}"#,
        );
        assert_eq!(direct.streaming, Some(StreamingMode::Direct));
        assert_eq!(direct.policy.run_as, RunAs::Image);
        let image = ImageId(Digest::of(b"x"));
        let terms = format!(
            r#","streaming_details":{{"public_key":"x","muster":{{"model":"m","image":"{image}","scheme":"text",
            "health":"/health","input_price":1,"output_price":2}}}}"#
        );
        let sealed = layout("always_on.llm.a6000", &terms);
        assert_eq!(sealed.streaming, Some(StreamingMode::Sealed));
        let as_nobody = Policy {
            run_as: RunAs::Nobody,
            ..direct.policy
        };
        assert_eq!(sealed.policy, as_nobody);
    }
}
