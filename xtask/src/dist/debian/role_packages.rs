//! The packages of the roles: units, users, folders, configurations and scripts, from the templates in `packaging/`.

use std::{fs, path::Path};

use anyhow::Context;

/// The package of one role.
pub(super) struct RolePackage {
    pub(super) role: &'static str,
    pub(super) about: &'static str,
    pub(super) description: &'static str,
    /// Packages that it needs beside `muster`.
    pub(super) depends: &'static str,
    /// Whether the role has a user of its own. The executor runs as root.
    has_user: bool,
    /// The shell command that succeeds if jobs would be lost now.
    jobs: &'static str,
    /// The command of an operator that empties the role.
    drain: &'static str,
}

/// The containers of the jobs in the executor's usual folder: each one's id, name and folder in a line. Other executors
/// of the engine have other folders.
const CONTAINERS: &str = "docker ps --all --filter label=muster.executor \
     --format '{{.ID}} {{.Names}} {{.Label \"muster.executor\"}}' 2>/dev/null | \
     grep ' /var/lib/muster/executor/'";

const SYSTEMD: &str = "systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles";

pub(super) const ROLES: [RolePackage; 4] = [
    RolePackage {
        role: "facilitator",
        about: "compute subnet: the service that users submit jobs to",
        description: "It has accounts, the REST API of jobs, their history and files, and an\n\
                      endpoint for OpenAI's clients. Validators connect to it. It needs no\n\
                      registration on a chain.",
        depends: SYSTEMD,
        has_user: true,
        jobs: "false",
        drain: "",
    },
    RolePackage {
        role: "validator",
        about: "compute subnet: routes jobs, scores miners and sets weights",
        description: "It gives users' jobs to miners, proves what hardware they have, signs a\n\
                      receipt for each job, and sets the miners' weights on the chain. Its hotkey\n\
                      must be registered there.",
        depends: SYSTEMD,
        has_user: true,
        jobs: "false",
        drain: "",
    },
    RolePackage {
        role: "miner",
        about: "compute subnet: takes jobs from validators, keeps executors",
        description: "It gives each job of a validator an executor: one of the package\n\
                      muster-executor on this or another machine, a batch job of Slurm, or a pod of\n\
                      Kubernetes. Its hotkey must be registered on the chain.",
        depends: SYSTEMD,
        has_user: true,
        // Another exit code means that nobody can tell: the configuration cannot be used, for example.
        jobs: "muster miner drain --check --config /etc/muster/miner.toml; [ $? -eq 1 ]",
        drain: "runuser -u muster-miner -- muster miner drain --config /etc/muster/miner.toml",
    },
    RolePackage {
        role: "executor",
        about: "compute subnet: runs jobs in sealed containers",
        description: "It runs the jobs of one miner in containers of this machine's Docker engine,\n\
                      each without a network and with bounds on everything. It runs as root,\n\
                      because it gives each job a file system of a fixed size.",
        depends: "systemd, docker.io | docker-ce, e2fsprogs, mount",
        has_user: false,
        // A job has a journal, a sealed session a container that was made for it; a container that waits has neither.
        jobs: "ls /var/lib/muster/executor/*/job.json >/dev/null 2>&1 || @containers@ | grep -q ' ch-'",
        drain: "muster executor drain --config /etc/muster/executor.toml",
    },
];

// === impl RolePackage ===

impl RolePackage {
    /// The package's name, which is also that of its unit and of its user.
    pub(super) fn package(&self) -> String {
        format!("muster-{}", self.role)
    }

    /// The configuration's path, relative to the root.
    pub(super) fn configuration(&self) -> String {
        format!("etc/muster/{}.toml", self.role)
    }

    /// The files of the package, each with its path relative to the root. `packaging` is the folder of templates.
    pub(super) fn files(&self, packaging: &Path) -> anyhow::Result<Vec<(String, String)>> {
        let (role, package) = (self.role, self.package());
        let mut unit = read(&packaging.join(format!("units/{package}.service")))?;
        unit = unit.replace(
            "@service@",
            read(&packaging.join("units/service.conf"))?.trim_end(),
        );
        let mut folders = "d /var/lib/muster 0755 root root -\n".to_owned();
        let mut files = vec![
            (
                self.configuration(),
                read(&packaging.join(format!("etc/{role}.toml")))?,
            ),
            (format!("usr/lib/systemd/system/{package}.service"), unit),
            (
                format!("usr/share/lintian/overrides/{package}"),
                format!(
                    "# It may hold passwords.\n{package}: non-standard-file-perm 0600 != 0644 [{}]\n",
                    self.configuration()
                ),
            ),
        ];
        if self.has_user {
            folders += &format!("d /var/lib/muster/{role} 0700 {package} {package} -\n");
            files.push((
                format!("usr/lib/sysusers.d/{package}.conf"),
                format!("u {package} - \"Muster {role}\" /var/lib/muster/{role}\n"),
            ));
        }
        files.push((format!("usr/lib/tmpfiles.d/{package}.conf"), folders));
        Ok(files)
    }

    /// The maintainer scripts of the package, each with its name.
    pub(super) fn scripts(&self, packaging: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
        // Nothing is started or enabled that was not. The executor sees by itself that its program was replaced.
        let upgraded = if self.has_user {
            format!(
                "deb-systemd-invoke try-restart {}.service || true",
                self.package()
            )
        } else {
            "# The executor sees that its program was replaced, and ends once that loses nothing.\n            :".to_owned()
        };
        let package = self.package();
        let (protect, cleanup) = if self.has_user {
            (
                format!(
                    "chown root:{package} /{0} && chmod 640 /{0}",
                    self.configuration()
                ),
                ":".to_owned(),
            )
        } else {
            let remove = "cut -d ' ' -f 1 | xargs --no-run-if-empty docker rm --force >/dev/null";
            (
                format!("chmod 600 /{}", self.configuration()),
                format!(
                    "{CONTAINERS} | {remove} || true\n    umount --lazy /var/lib/muster/executor/*/d 2>/dev/null || true"
                ),
            )
        };
        let mut scripts = Vec::new();
        for name in ["postinst", "prerm", "postrm"] {
            let mut script = read(&packaging.join("scripts").join(name))?;
            if !self.has_user {
                script = script.replace("    systemd-sysusers @package@.conf\n", "");
            }
            for (word, text) in [
                ("@package@", self.package().as_str()),
                ("@role@", self.role),
                ("@jobs@", self.jobs),
                ("@containers@", CONTAINERS),
                ("@protect@", protect.as_str()),
                ("@drain@", self.drain),
                ("@upgraded@", upgraded.as_str()),
                ("@cleanup@", cleanup.as_str()),
            ] {
                script = script.replace(word, text);
            }
            scripts.push((name, script));
        }
        Ok(scripts)
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directives of a unit that give it mounts of its own (systemd.exec(5)), by the beginnings of their names.
    const MAKES_MOUNTS: [&str; 15] = [
        "Protect",
        "Private",
        "ReadWritePaths",
        "ReadOnlyPaths",
        "InaccessiblePaths",
        "ExecPaths",
        "NoExecPaths",
        "TemporaryFileSystem",
        "Bind",
        "RootDirectory",
        "RootImage",
        "DynamicUser",
        "MountAPIVFS",
        "ProcSubset",
        "LogNamespace",
    ];

    fn packaging() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
    }

    fn unit(role: &RolePackage) -> String {
        let files = role.files(&packaging()).unwrap();
        let is_unit = |(path, _): &&(String, String)| path.ends_with(".service");
        files.iter().find(is_unit).unwrap().1.clone()
    }

    #[test]
    fn the_executors_unit_shares_the_mounts_of_the_machine() {
        let executor = ROLES.iter().find(|role| role.role == "executor").unwrap();
        for line in unit(executor).lines() {
            let makes_mounts = MAKES_MOUNTS.iter().any(|name| line.starts_with(name));
            assert!(!makes_mounts, "{line}");
        }
    }

    #[test]
    fn every_other_unit_has_a_user_of_its_own_and_no_capability() {
        for role in ROLES.iter().filter(|role| role.has_user) {
            let unit = unit(role);
            for line in [
                format!("User={}", role.package()),
                format!("StateDirectory=muster/{}", role.role),
                "CapabilityBoundingSet=".to_owned(),
                "ProtectSystem=strict".to_owned(),
                format!(
                    "ExecStart=/usr/bin/muster {} --config /{}",
                    role.role,
                    role.configuration()
                ),
            ] {
                assert!(unit.lines().any(|found| found == line), "{line} in\n{unit}");
            }
        }
    }

    #[test]
    fn every_script_is_a_script_of_the_shell() {
        for role in &ROLES {
            for (name, script) in role.scripts(&packaging()).unwrap() {
                let mut shell = std::process::Command::new("sh");
                let checked = shell.args(["-n", "-c", &script]).output().unwrap();
                let told = String::from_utf8_lossy(&checked.stderr);
                assert!(
                    checked.status.success(),
                    "{} of the {}: {told}\n{script}",
                    name,
                    role.role
                );
            }
        }
    }

    #[test]
    fn no_word_of_a_template_is_left_over() {
        for role in &ROLES {
            let files = role.files(&packaging()).unwrap();
            let scripts = role.scripts(&packaging()).unwrap();
            let texts = files
                .iter()
                .map(|(_, text)| text)
                .chain(scripts.iter().map(|(_, text)| text));
            for text in texts {
                for word in [
                    "@package@",
                    "@role@",
                    "@jobs@",
                    "@drain@",
                    "@upgraded@",
                    "@containers@",
                    "@protect@",
                    "@cleanup@",
                    "@service@",
                ] {
                    assert!(!text.contains(word), "{word} in\n{text}");
                }
            }
        }
    }
}
