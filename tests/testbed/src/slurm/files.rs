//! The configuration files of a cluster.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::unistd::{User, geteuid};

use super::{CPUS, GPU_TYPE, GPUS, MEMORY_MIB, PARTITION};

/// Writes all files of a cluster whose controller and nodes listen on these ports.
pub(crate) fn write(folder: &Path, controller: u16, nodes: &[u16], extra: &str) -> io::Result<()> {
    // munged refuses a folder into which others may write, and clients of any user look for its socket there.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for name in ["state", "log", "run", "munge", "gpus"] {
        fs::create_dir_all(folder.join(name))?;
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755))?;
    }
    let mut key = vec![0; 1024];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let key_file = folder.join("munge.key");
    fs::write(&key_file, key)?;
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o400))?;
    let cgroup = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n";
    fs::write(folder.join("cgroup.conf"), cgroup)?;
    let mut gres = String::new();
    for (index, _) in nodes.iter().enumerate() {
        fs::create_dir_all(folder.join(format!("spool.node{index}")))?;
        // Slurm looks for a file for each GPU, and any file serves.
        for gpu in 0..GPUS {
            fs::write(folder.join(format!("gpus/node{index}-{gpu}")), [])?;
        }
        let files = format!(
            "{}/gpus/node{index}-[0-{}]",
            folder.display(),
            GPUS.saturating_sub(1)
        );
        let _ = writeln!(gres, "NodeName=node{index} Name=gpu Type={GPU_TYPE} File={files}");
    }
    fs::write(folder.join("gres.conf"), gres)?;
    fs::write(
        folder.join("slurm.conf"),
        slurm_conf(folder, controller, nodes, extra)?,
    )
}

fn slurm_conf(folder: &Path, controller: u16, nodes: &[u16], extra: &str) -> io::Result<String> {
    let user = User::from_uid(geteuid())?.ok_or_else(|| io::Error::other("this user has no name"))?;
    let (user, at) = (user.name, folder.display());
    // A job begins without a delay, a lost node is noticed soon, and nothing needs cgroups of its own.
    let mut text = format!(
        "ClusterName=muster
SlurmctldHost=localhost
SlurmctldPort={controller}
AuthInfo=socket={at}/munge/socket
SlurmUser={user}
SlurmdUser={user}
SlurmctldPidFile={at}/run/controller.pid
SlurmdPidFile={at}/run/%n.pid
SlurmctldLogFile={at}/log/controller
SlurmdLogFile={at}/log/%n
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool.%n
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MessageTimeout=10
GresTypes=gpu
AccountingStorageType=accounting_storage/none
"
    );
    for (index, port) in nodes.iter().enumerate() {
        let _ = writeln!(
            text,
            "NodeName=node{index} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} \
             RealMemory={MEMORY_MIB} Gres=gpu:{GPU_TYPE}:{GPUS}"
        );
    }
    let last = nodes.len().saturating_sub(1);
    let _ = writeln!(
        text,
        "PartitionName={PARTITION} Nodes=node[0-{last}] Default=YES MaxTime=INFINITE State=UP\n{extra}"
    );
    Ok(text)
}
