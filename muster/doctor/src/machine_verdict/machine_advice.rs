//! The verdicts over a machine's facts for a purpose, with advice. Pure.

use muster_protocol::ErrorCode;

use crate::machine_verdict::machine_facts::{
    ClockFacts, DiskFacts, EngineFacts, GpuFacts, LoginFacts, MachineFacts, PortFacts, RemoteFacts,
};
use crate::machine_verdict::verdict::{Purpose, Severity, Verdict};
use crate::machine_verdict::{class_hardware, is_example, miner};

const GIB: u64 = 1024 * 1024 * 1024;
/// Images and a job's data need more than this.
const DISK_FAILS: u64 = 2 * GIB;
/// An executor lets one job write 20 GiB by default.
const DISK_WARNS: u64 = 30 * GIB;
/// A greeting that is older than 10 seconds is refused by every peer.
const CLOCK_FAILS_S: u64 = 10;
const CLOCK_WARNS_S: u64 = 3;
/// The first toolkit without CVE-2025-23266, by which the loader's variables of an image reached a hook.
const LEAST_TOOLKIT: (u32, u32, u32) = (1, 17, 8);

/// Every verdict, in the order in which one would mend things.
pub fn judge(facts: &MachineFacts, purpose: Purpose) -> Vec<Verdict> {
    let mut verdicts = vec![
        engine(&facts.engine, purpose),
        disk(&facts.disk, purpose),
        clock(&facts.clock),
    ];
    verdicts.extend(image_store(&facts.engine, purpose));
    verdicts.extend(podman(&facts.engine, purpose));
    verdicts.extend(disk_bound(&facts.disk));
    verdicts.extend(file_owners(&facts.disk));
    verdicts.extend(facts.ports.iter().map(|port| self::port(port, purpose)));
    verdicts.push(gpu(&facts.gpu, purpose));
    verdicts.push(chain(facts.chain.as_ref(), purpose));
    verdicts.push(facilitator(facts.facilitator.as_ref(), purpose));
    verdicts.push(login(&facts.login, purpose));
    if let Some(miner) = &facts.miner {
        let promised = miner.promised.iter();
        verdicts.extend(promised.map(|promised| class_hardware::judge(promised, facts.hardware, &facts.gpu)));
        verdicts.extend(miner::judge(miner));
    }
    verdicts
}

fn engine(engine: &EngineFacts, purpose: Purpose) -> Verdict {
    const CHECK: &str = "engine";
    if let Some(version) = &engine.version {
        return Verdict::fine(CHECK, format!("Docker engine {version} answers"));
    }
    let why = engine.error.as_deref().unwrap_or("it was not asked");
    if purpose.runs_jobs() {
        let says = format!("no Docker engine can be used: {why}");
        return Verdict::new(CHECK, Severity::Failure, says)
            .coded(ErrorCode::EngineUnreachable)
            .advising(
                "install one (Debian: apt-get install docker.io), start it, and run as a user who may use its socket (group docker)",
            );
    }
    Verdict::new(
        CHECK,
        Severity::Note,
        "no Docker engine answers; this purpose needs none",
    )
}

/// Whether the engine finds images by their ids; `None` where no jobs run.
fn image_store(engine: &EngineFacts, purpose: Purpose) -> Option<Verdict> {
    const CHECK: &str = "image store";
    Some(match engine.by_manifest.filter(|_| purpose.runs_jobs())? {
        false => Verdict::fine(CHECK, "the engine finds images by their ids"),
        true => Verdict::new(
            CHECK,
            Severity::Failure,
            "the engine keeps images in containerd's store, which finds none by its id: jobs that name an image by id, \
             images from archives, and ids in images.local fail here",
        )
        .coded(ErrorCode::EngineImageStore)
        .advising(
            "set \"features\": {\"containerd-snapshotter\": false} in /etc/docker/daemon.json, and start the engine again",
        ),
    })
}

/// The things that podman does otherwise than Docker where jobs run (docs/operations/podman.md).
fn podman(engine: &EngineFacts, purpose: Purpose) -> Option<Verdict> {
    let told = Verdict::new(
        "podman",
        Severity::Warning,
        "the engine is podman, which is not supported: batch jobs run, a job that runs out of memory is not told so, \
         output of a job whose executor was replaced is marked as incomplete, and streaming sessions do not start",
    );
    let advised = told.advising("install Docker for a miner that earns (Debian: apt-get install docker.io)");
    (engine.podman && purpose.runs_jobs()).then_some(advised)
}

fn disk(disk: &DiskFacts, purpose: Purpose) -> Verdict {
    const CHECK: &str = "disk";
    let DiskFacts {
        folder, free, error, ..
    } = disk;
    let Some(free) = *free else {
        let why = error.as_deref().unwrap_or("it was not asked");
        return Verdict::new(
            CHECK,
            Severity::Warning,
            format!("the disk of {folder} cannot be looked at: {why}"),
        )
        .advising("name a folder that exists: muster doctor --disk FOLDER");
    };
    let says = format!("{} GiB are free below {folder}", free / GIB);
    let advice = "make room: `docker system prune` removes images and containers that nobody uses";
    if free < DISK_FAILS {
        Verdict::new(CHECK, Severity::Failure, says).advising(advice)
    } else if free < DISK_WARNS && purpose.runs_jobs() {
        Verdict::new(CHECK, Severity::Warning, says).advising(format!(
            "{advice}; or bound what a job may write (limits.disk_mib of the executor, 20 GiB by default)"
        ))
    } else {
        Verdict::fine(CHECK, says)
    }
}

/// How executors bound what a job writes; `None` where no jobs run.
fn disk_bound(disk: &DiskFacts) -> Option<Verdict> {
    const CHECK: &str = "disk bound";
    let folder = &disk.folder;
    Some(match (disk.sized?, &disk.unsized_because) {
        (true, _) => Verdict::fine(
            CHECK,
            format!("each job gets a file system of a fixed size below {folder}"),
        ),
        (false, because) => Verdict::new(
            CHECK,
            Severity::Warning,
            format!(
                "jobs' folders below {folder} are only measured while they run: {}",
                because.as_deref().unwrap_or("no reason is known")
            ),
        )
        .advising(
            "run executors as root beside their engine, with mkfs.ext4 and mount (e2fsprogs, util-linux); or keep \
             work_dir on a disk of its own: a job can fill it for a second, and hide files from measurements",
        ),
    })
}

/// Whether jobs find the files of their images with the owners that they have there; `None` where no jobs run.
fn file_owners(disk: &DiskFacts) -> Option<Verdict> {
    const CHECK: &str = "file owners";
    Some(match disk.gives_files? {
        true => Verdict::fine(CHECK, "jobs find the files of their images with their owners"),
        false => Verdict::new(
            CHECK,
            Severity::Warning,
            "executors of this user cannot give files away: what an image keeps in its volumes, its home and /tmp is \
             there and can be written, and belongs to this user; programs that insist on an owner (ssh, postgres) fail",
        )
        .advising("run executors as root, and tell the users of their classes otherwise"),
    })
}

fn clock(clock: &ClockFacts) -> Verdict {
    const CHECK: &str = "clock";
    const ADVICE: &str = "let the system keep it: `timedatectl set-ntp true`, or install chrony";
    if let Some(ahead) = clock.ahead_s {
        let by = ahead.unsigned_abs();
        let way = if ahead < 0 { "behind" } else { "ahead of" };
        let says = format!("this clock is {by} s {way} the facilitator's");
        if by >= CLOCK_FAILS_S {
            return Verdict::new(
                CHECK,
                Severity::Failure,
                format!("{says}; signatures will be refused"),
            )
            .coded(ErrorCode::SignatureRefused)
            .advising(ADVICE);
        }
        if by >= CLOCK_WARNS_S {
            return Verdict::new(CHECK, Severity::Warning, says).advising(ADVICE);
        }
    }
    let compared = if clock.ahead_s.is_some() {
        "; it agrees with the facilitator's"
    } else {
        ""
    };
    match clock.synchronised {
        Some(true) => Verdict::fine(CHECK, format!("the system keeps the clock in step{compared}")),
        Some(false) if clock.ahead_s.is_none() => Verdict::new(
            CHECK,
            Severity::Warning,
            "the system does not keep the clock in step",
        )
        .advising(ADVICE),
        Some(false) => {
            let says = format!("the system does not keep the clock in step{compared}");
            Verdict::new(CHECK, Severity::Note, says).advising(ADVICE)
        }
        None if clock.ahead_s.is_some() => Verdict::fine(CHECK, "the clock agrees with the facilitator's"),
        None => Verdict::new(
            CHECK,
            Severity::Note,
            "nothing here says whether the clock is right",
        ),
    }
}

fn port(port: &PortFacts, purpose: Purpose) -> Verdict {
    const CHECK: &str = "ports";
    let PortFacts { role, address, error } = port;
    let Some(why) = error else {
        return Verdict::fine(CHECK, format!("{address} is free for a {role}"));
    };
    let says = format!("{address}, where a {role} is to listen, cannot be listened on: {why}");
    // `muster up` takes free ports by itself.
    let state = match purpose {
        Purpose::Up | Purpose::User => Severity::Note,
        Purpose::Miner | Purpose::Validator | Purpose::Facilitator => Severity::Warning,
    };
    Verdict::new(CHECK, state, says)
        .coded(ErrorCode::BindFailed)
        .advising(format!(
            "`ss -ltnp` shows who has it; perhaps the {role} runs already, else set `bind` in its configuration"
        ))
}

fn gpu(gpu: &GpuFacts, purpose: Purpose) -> Verdict {
    const CHECK: &str = "gpu";
    if !gpu.device && gpu.found.is_empty() {
        let says = if purpose.runs_jobs() {
            "no NVIDIA GPU: executors of the classes without one can run (always_on.test, always_on.cpu.8c.16gb)"
        } else {
            "no NVIDIA GPU; this purpose needs none"
        };
        return Verdict::new(CHECK, Severity::Note, says);
    }
    if gpu.found.is_empty() {
        let why = gpu.error.as_deref().unwrap_or("it names none");
        let says = format!("there is an NVIDIA device, but its driver does not say which: {why}");
        let state = if purpose.runs_jobs() {
            Severity::Failure
        } else {
            Severity::Note
        };
        return Verdict::new(CHECK, state, says).advising(
            "`nvidia-smi` must list it; after an update of the driver the machine has to be started again",
        );
    }
    let names = gpu.found.join("; ");
    if !purpose.runs_jobs() {
        return Verdict::fine(CHECK, names);
    }
    let advice = "install NVIDIA's container toolkit, 1.17.8 or newer, and let it set Docker up: `nvidia-ctk runtime configure \
                  --runtime=docker`, then restart Docker";
    match &gpu.toolkit {
        None => Verdict::new(
            CHECK,
            Severity::Failure,
            format!("{names}; but containers cannot get at it"),
        )
        .advising(advice),
        Some(version) => match version_of(version) {
            Some(found) if found >= LEAST_TOOLKIT => {
                Verdict::fine(CHECK, format!("{names}; container toolkit {version}"))
            }
            Some(_) => {
                let says =
                    format!("{names}; container toolkit {version} lets jobs break out of their container");
                Verdict::new(CHECK, Severity::Failure, says).advising(advice)
            }
            None => {
                let says = format!("{names}; a container toolkit of unknown version ({version})");
                Verdict::new(CHECK, Severity::Warning, says).advising(advice)
            }
        },
    }
}

/// The first three numbers of a version.
fn version_of(text: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

fn chain(chain: Option<&RemoteFacts>, purpose: Purpose) -> Verdict {
    const CHECK: &str = "chain";
    let Some(chain) = chain else {
        let state = if purpose.needs_chain() {
            Severity::Warning
        } else {
            Severity::Note
        };
        return Verdict::new(CHECK, state, "no chain is known")
            .advising("name one: muster doctor --chain ws://HOST:9944; `muster up` starts one of its own");
    };
    remote(CHECK, chain, purpose.needs_chain(), ErrorCode::ChainUnreachable)
}

fn facilitator(facilitator: Option<&RemoteFacts>, purpose: Purpose) -> Verdict {
    const CHECK: &str = "facilitator";
    let Some(facilitator) = facilitator else {
        let state = if purpose.submits_jobs() {
            Severity::Warning
        } else {
            Severity::Note
        };
        return Verdict::new(CHECK, state, "no facilitator is known")
            .advising("`muster login --facilitator URL`, or `muster up` for one of your own");
    };
    let needed = purpose.submits_jobs() || matches!(purpose, Purpose::Validator);
    remote(CHECK, facilitator, needed, ErrorCode::FacilitatorUnreachable)
}

fn remote(check: &'static str, remote: &RemoteFacts, needed: bool, code: ErrorCode) -> Verdict {
    let RemoteFacts { url, says, error } = remote;
    if let Some(says) = says {
        return Verdict::fine(check, format!("{url} answers: {says}"));
    }
    let state = if needed {
        Severity::Failure
    } else {
        Severity::Warning
    };
    if is_example(url) {
        let says = format!("{url} is still the example, so it was not asked");
        return Verdict::new(check, state, says).advising(format!(
            "name the {check} that you use, in the configuration or on the command line"
        ));
    }
    let why = error.as_deref().unwrap_or("it was not asked");
    Verdict::new(check, state, format!("{url} does not answer: {why}"))
        .coded(code)
        .advising("is it running, and does a firewall or a proxy stand between? Try it from another machine")
}

fn login(login: &LoginFacts, purpose: Purpose) -> Verdict {
    const CHECK: &str = "login";
    if let Some(whom) = &login.whom {
        return Verdict::fine(CHECK, format!("commands speak for {whom}"));
    }
    let why = login.error.as_deref().unwrap_or("nothing was looked for");
    let state = if purpose.submits_jobs() {
        Severity::Failure
    } else {
        Severity::Note
    };
    Verdict::new(CHECK, state, format!("commands speak for nobody: {why}"))
        .coded(ErrorCode::NotLoggedIn)
        .advising("`muster login`, or MUSTER_API_KEY, or --wallet NAME; after `muster up` nothing of this is needed in its folder")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine_verdict::machine_facts::HardwareFacts;
    use crate::machine_verdict::verdict::worst_severity;

    const ALL: [Purpose; 5] = [
        Purpose::Up,
        Purpose::User,
        Purpose::Miner,
        Purpose::Validator,
        Purpose::Facilitator,
    ];

    fn well() -> MachineFacts {
        let remote = |url: &str| {
            Some(RemoteFacts {
                url: url.to_owned(),
                says: Some("block 7".to_owned()),
                error: None,
            })
        };
        MachineFacts {
            engine: EngineFacts {
                version: Some("27.0".to_owned()),
                by_manifest: Some(false),
                podman: false,
                error: None,
            },
            disk: DiskFacts {
                folder: "/var/tmp".to_owned(),
                free: Some(100 * GIB),
                error: None,
                sized: Some(true),
                unsized_because: None,
                gives_files: Some(true),
            },
            ports: vec![PortFacts {
                role: "miner".to_owned(),
                address: "127.0.0.1:8092".to_owned(),
                error: None,
            }],
            clock: ClockFacts {
                synchronised: Some(true),
                ahead_s: Some(0),
            },
            chain: remote("ws://c"),
            facilitator: remote("http://f"),
            login: LoginFacts {
                whom: Some("hotkey 5F…".to_owned()),
                error: None,
            },
            gpu: GpuFacts {
                device: true,
                found: vec!["H200, 580.1, 143771 MiB".to_owned()],
                error: None,
                toolkit: Some("1.17.8".to_owned()),
            },
            hardware: HardwareFacts::default(),
            miner: None,
        }
    }

    fn state_of(facts: &MachineFacts, purpose: Purpose, check: &str) -> Severity {
        let verdicts = judge(facts, purpose);
        verdicts
            .iter()
            .find(|verdict| verdict.check == check)
            .unwrap()
            .state
    }

    #[test]
    fn a_machine_that_is_well_is_well_for_everything() {
        for purpose in ALL {
            let verdicts = judge(&well(), purpose);
            assert_eq!(
                worst_severity(&verdicts),
                Severity::Fine,
                "{purpose:?}: {verdicts:?}"
            );
        }
    }

    #[test]
    fn every_fault_of_a_machine_names_its_mend() {
        let nothing = MachineFacts {
            ports: vec![PortFacts {
                role: "miner".to_owned(),
                address: "127.0.0.1:8092".to_owned(),
                error: Some("address in use".to_owned()),
            }],
            ..MachineFacts::default()
        };
        for purpose in ALL {
            for verdict in judge(&nothing, purpose) {
                let told = !verdict.advice.is_empty() || verdict.state == Severity::Note;
                assert!(told && !verdict.says.is_empty(), "{purpose:?}: {verdict:?}");
            }
        }
    }

    #[test]
    fn an_engine_is_needed_where_jobs_run() {
        let mut facts = well();
        facts.engine = EngineFacts {
            error: Some("no socket".to_owned()),
            ..EngineFacts::default()
        };
        for (purpose, expected) in [
            (Purpose::Up, Severity::Failure),
            (Purpose::Miner, Severity::Failure),
            (Purpose::User, Severity::Note),
            (Purpose::Validator, Severity::Note),
        ] {
            assert_eq!(state_of(&facts, purpose, "engine"), expected, "{purpose:?}");
        }
        let verdicts = judge(&facts, Purpose::Up);
        assert_eq!(verdicts[0].code, Some("E0001"));
        assert!(verdicts[0].says.contains("no socket"));
    }

    #[test]
    fn a_store_that_finds_no_image_by_its_id_is_told_where_jobs_run() {
        let mut facts = well();
        assert_eq!(state_of(&facts, Purpose::Miner, "image store"), Severity::Fine);
        facts.engine.by_manifest = Some(true);
        for purpose in [Purpose::Up, Purpose::Miner] {
            assert_eq!(state_of(&facts, purpose, "image store"), Severity::Failure);
        }
        let is_told = |verdict: &Verdict| verdict.check == "image store";
        assert!(!judge(&facts, Purpose::User).iter().any(is_told));
        let verdicts = judge(&facts, Purpose::Miner);
        let told = verdicts.iter().find(|verdict| is_told(verdict)).unwrap();
        assert_eq!(told.code, Some("E0048"));
        assert!(told.advice.contains("containerd-snapshotter"));
    }

    #[test]
    fn podman_is_told_where_jobs_run() {
        let mut facts = well();
        let is_told = |verdict: &Verdict| verdict.check == "podman";
        assert!(!judge(&facts, Purpose::Miner).iter().any(is_told));
        facts.engine.podman = true;
        assert_eq!(state_of(&facts, Purpose::Miner, "podman"), Severity::Warning);
        assert!(!judge(&facts, Purpose::User).iter().any(is_told));
    }

    #[test]
    fn the_way_in_which_jobs_disks_are_bounded_is_told() {
        let mut facts = well();
        assert_eq!(state_of(&facts, Purpose::Miner, "disk bound"), Severity::Fine);
        facts.disk.sized = Some(false);
        facts.disk.unsized_because = Some("mount failed: not permitted".to_owned());
        assert_eq!(state_of(&facts, Purpose::Miner, "disk bound"), Severity::Warning);
        let verdicts = judge(&facts, Purpose::Miner);
        let bound = verdicts.iter().find(|verdict| verdict.check == "disk bound");
        assert!(bound.unwrap().says.contains("not permitted"));
        facts.disk.sized = None;
        let verdicts = judge(&facts, Purpose::User);
        assert!(verdicts.iter().all(|verdict| verdict.check != "disk bound"));
    }

    #[test]
    fn an_executor_that_cannot_give_files_away_is_told() {
        let mut facts = well();
        assert_eq!(state_of(&facts, Purpose::Miner, "file owners"), Severity::Fine);
        facts.disk.gives_files = Some(false);
        assert_eq!(state_of(&facts, Purpose::Miner, "file owners"), Severity::Warning);
        facts.disk.gives_files = None;
        let verdicts = judge(&facts, Purpose::User);
        assert!(verdicts.iter().all(|verdict| verdict.check != "file owners"));
    }

    #[test]
    fn a_disk_warns_before_it_fails() {
        let mut facts = well();
        for (free, expected) in [
            (Some(GIB), Severity::Failure),
            (Some(10 * GIB), Severity::Warning),
            (Some(40 * GIB), Severity::Fine),
            (None, Severity::Warning),
        ] {
            facts.disk.free = free;
            assert_eq!(state_of(&facts, Purpose::Miner, "disk"), expected, "{free:?}");
        }
        facts.disk.free = Some(10 * GIB);
        assert_eq!(state_of(&facts, Purpose::User, "disk"), Severity::Fine);
    }

    #[test]
    fn a_clock_that_is_ten_seconds_off_is_refused_by_everybody() {
        let mut facts = well();
        for (ahead, synchronised, expected) in [
            (Some(10), Some(true), Severity::Failure),
            (Some(-11), None, Severity::Failure),
            (Some(4), Some(true), Severity::Warning),
            (Some(-1), Some(false), Severity::Note),
            (Some(1), None, Severity::Fine),
            (None, Some(false), Severity::Warning),
            (None, None, Severity::Note),
        ] {
            facts.clock = ClockFacts {
                synchronised,
                ahead_s: ahead,
            };
            assert_eq!(
                state_of(&facts, Purpose::Up, "clock"),
                expected,
                "{ahead:?} {synchronised:?}"
            );
        }
    }

    #[test]
    fn a_gpu_without_a_way_into_containers_is_a_failure_where_jobs_run() {
        let mut facts = well();
        for (toolkit, expected) in [
            (Some("1.17.8"), Severity::Fine),
            (Some("1.17.7-1"), Severity::Failure),
            (Some("1.18.0~rc.1"), Severity::Fine),
            (Some("unknown"), Severity::Warning),
            (None, Severity::Failure),
        ] {
            facts.gpu.toolkit = toolkit.map(str::to_owned);
            assert_eq!(state_of(&facts, Purpose::Miner, "gpu"), expected, "{toolkit:?}");
            assert_eq!(state_of(&facts, Purpose::User, "gpu"), Severity::Fine);
        }
        facts.gpu.found.clear();
        assert_eq!(state_of(&facts, Purpose::Miner, "gpu"), Severity::Failure);
        facts.gpu = GpuFacts::default();
        assert_eq!(state_of(&facts, Purpose::Miner, "gpu"), Severity::Note);
    }

    #[test]
    fn remote_services_must_answer_the_roles_that_need_them() {
        let mut facts = well();
        let silent = |url: &str| {
            Some(RemoteFacts {
                url: url.to_owned(),
                says: None,
                error: Some("refused".to_owned()),
            })
        };
        facts.chain = silent("ws://c");
        facts.facilitator = silent("http://f");
        facts.login = LoginFacts::default();
        assert_eq!(state_of(&facts, Purpose::Miner, "chain"), Severity::Failure);
        assert_eq!(state_of(&facts, Purpose::User, "chain"), Severity::Warning);
        assert_eq!(state_of(&facts, Purpose::User, "facilitator"), Severity::Failure);
        assert_eq!(state_of(&facts, Purpose::Miner, "facilitator"), Severity::Warning);
        assert_eq!(state_of(&facts, Purpose::User, "login"), Severity::Failure);
        assert_eq!(state_of(&facts, Purpose::Miner, "login"), Severity::Note);
        facts.chain = None;
        assert_eq!(state_of(&facts, Purpose::Validator, "chain"), Severity::Warning);
    }

    #[test]
    fn an_example_that_was_left_in_place_is_named_as_one() {
        let mut facts = well();
        facts.chain = Some(RemoteFacts {
            url: "wss://chain.example:443".to_owned(),
            ..RemoteFacts::default()
        });
        let verdicts = judge(&facts, Purpose::Miner);
        let chain = verdicts.iter().find(|verdict| verdict.check == "chain").unwrap();
        assert_eq!(chain.state, Severity::Failure);
        assert!(chain.says.contains("still the example"), "{chain:?}");
        assert!(!chain.advice.contains("firewall"), "{chain:?}");
    }

    #[test]
    fn a_verdict_in_json_has_its_words() {
        let verdict = engine(&EngineFacts::default(), Purpose::Up);
        let text = serde_json::to_value(&verdict).unwrap();
        assert_eq!(
            (&text["state"], &text["code"]),
            (&"failure".into(), &"E0001".into())
        );
    }
}
