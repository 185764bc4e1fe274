//! Programs that the tests need: installed with apt for root on Debian, otherwise named with the command that installs
//! them.

use std::{path::Path, process::Command};

use super::{Run, child_process::on_path, docker, postgres, python, report::Outcome};

struct Need {
    what: &'static str,
    present: fn() -> bool,
    /// The names of Debian's packages that bring it.
    packages: &'static [&'static str],
}

/// A font by which pages can be looked at.
const FONT: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";

const NEEDS: &[Need] = &[
    Need {
        what: "git",
        present: || on_path("git"),
        packages: &["git"],
    },
    Need {
        what: "curl",
        present: || on_path("curl"),
        packages: &["curl"],
    },
    Need {
        what: "networks apart",
        present: || on_path("ip"),
        packages: &["iproute2"],
    },
    Need {
        what: "a C and a C++ compiler",
        present: || on_path("gcc") && on_path("g++"),
        packages: &["gcc", "g++", "libc6-dev"],
    },
    Need {
        what: "PostgreSQL's server",
        present: || postgres::programs().is_some(),
        packages: &["postgresql"],
    },
    Need {
        what: "Python 3 with venv",
        present: python::present,
        packages: &["python3", "python3-venv"],
    },
    Need {
        what: "a Docker engine",
        present: docker::present,
        packages: docker::PACKAGES,
    },
    Need {
        what: "a registry of images",
        present: || on_path("docker-registry"),
        packages: &["docker-registry"],
    },
    Need {
        what: "the programs inside test images",
        present: || on_path("busybox") && Path::new("/usr/bin/python3").exists(),
        packages: &["busybox-static", "python3"],
    },
    Need {
        what: "the maker of Debian images",
        present: || Path::new("/usr/sbin/debootstrap").exists(),
        packages: &["debootstrap"],
    },
    Need {
        what: "a browser with its driver and a font",
        present: || on_path("chromium") && on_path("chromedriver") && Path::new(FONT).exists(),
        packages: &["chromium", "chromium-driver", "fonts-dejavu-core"],
    },
    Need {
        what: "Prometheus with promtool",
        present: || on_path("prometheus") && on_path("promtool"),
        packages: &["prometheus"],
    },
    Need {
        what: "tmux",
        present: || on_path("tmux"),
        packages: &["tmux"],
    },
    Need {
        what: "gVisor",
        present: || on_path("runsc"),
        packages: &["runsc"],
    },
    // Tests start the daemons themselves; without a configuration the packages' own units start neither of Slurm's.
    Need {
        what: "Slurm with munge",
        present: || {
            ["slurmctld", "slurmd", "sbatch", "munged"]
                .into_iter()
                .all(on_path)
        },
        packages: &["slurmctld", "slurmd", "slurm-client", "munge"],
    },
];

/// The needs of the long tests alone. They start the daemons themselves, so the packages' own units may stay off.
const LONG_NEEDS: &[Need] = &[Need {
    what: "a PostgreSQL that fails over",
    present: || on_path("etcd") && on_path("patroni") && Path::new("/usr/sbin/haproxy").exists(),
    packages: &["etcd-server", "patroni", "haproxy"],
}];

/// Installs what is missing; fails, and prints how to get it, if something stays missing.
pub(super) fn run(run: &Run<'_>) -> anyhow::Result<Outcome> {
    install(run, NEEDS)
}

/// The same for the needs of the long tests.
pub(super) fn run_long(run: &Run<'_>) -> anyhow::Result<Outcome> {
    install(run, LONG_NEEDS)
}

fn install(run: &Run<'_>, needs: &'static [Need]) -> anyhow::Result<Outcome> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(Outcome::Passed);
    }
    let packages = packages(&missing);
    if !(root() && Path::new("/etc/debian_version").exists()) {
        return Ok(Outcome::Failed(advice(&missing, &packages)));
    }
    run.console
        .print(format_args!("apt-get install {}", packages.join(" ")));
    let mut update = apt();
    run.check(update.arg("update"))?;
    let mut install = apt();
    run.check(
        install
            .args(["install", "--yes", "--no-install-recommends"])
            .args(&packages),
    )?;
    let missing = self::missing(needs);
    if missing.is_empty() {
        Ok(Outcome::Passed)
    } else {
        Ok(Outcome::Failed(advice(&missing, &packages)))
    }
}

fn apt() -> Command {
    let mut apt = Command::new("apt-get");
    apt.arg("--quiet")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(std::process::Stdio::null());
    apt
}

/// Whether we may install packages and start daemons.
pub(super) fn root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn missing(needs: &'static [Need]) -> Vec<&'static Need> {
    needs.iter().filter(|need| !(need.present)()).collect()
}

fn packages(missing: &[&Need]) -> Vec<&'static str> {
    missing
        .iter()
        .flat_map(|need| need.packages.iter().copied())
        .collect()
}

fn advice(missing: &[&Need], packages: &[&str]) -> String {
    let what: Vec<&str> = missing.iter().map(|need| need.what).collect();
    let command = format!("apt-get update && apt-get install {}", packages.join(" "));
    format!("missing: {}. On Debian, as root: {command}", what.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_is_missing_and_the_whole_command() {
        let missing: Vec<&Need> = NEEDS.iter().filter(|need| need.what != "git").collect();
        let advice = advice(&missing, &packages(&missing));
        assert_eq!(
            advice,
            "missing: curl, networks apart, a C and a C++ compiler, PostgreSQL's server, Python 3 with venv, a Docker \
             engine, a registry of images, the programs inside test images, the maker of Debian images, a browser with \
             its driver and a font, \
             Prometheus with promtool, tmux, gVisor, Slurm with munge. On Debian, as root: apt-get update && apt-get install curl iproute2 gcc g++ libc6-dev postgresql python3 \
             python3-venv docker.io containerd runc iptables docker-registry busybox-static python3 debootstrap chromium \
             chromium-driver fonts-dejavu-core prometheus tmux runsc slurmctld slurmd slurm-client munge"
        );
    }

    #[test]
    fn every_need_can_be_installed() {
        let mut needs = NEEDS.iter().chain(LONG_NEEDS);
        assert!(needs.all(|need| !need.packages.is_empty()));
    }
}
