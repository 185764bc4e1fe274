//! The answers of real engines to images with each fault, and their judgements.

use super::*;

const RUNC: &str = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start \
    container process: ";
const OVERLAY: &str =
    "/var/lib/docker/overlay2/f8f144dc7a7eaa210c650b9108114f5a88efaeb06b8dc12271d0e8b2b8cf392f/merged";
const HINT: &str = ": unknown: Are you trying to mount a directory onto a file (or vice-versa)? Check if the \
    specified host path exists and is the expected type";

fn judge(words: &str) -> (AnswerFault, Option<i64>) {
    let answer = EngineAnswer::judge(words);
    for hidden in ["/var/lib", "/data/executor", "/run/", "overlay2"] {
        assert!(!answer.message.contains(hidden), "{}", answer.message);
    }
    (answer.fault, answer.exit_code)
}

/// Docker 20.10 with runc 1.1, by images with each fault.
#[test]
fn docker_answers_about_an_image_blame_no_machine() {
    let mount = |target: &str, why: &str| {
        format!(
            "{RUNC}error during container init: error mounting \"/data/executor/x/output\" to rootfs at \"{target}\": {why}"
        )
    };
    for words in [
        "No command specified".to_owned(),
        "unable to find user nosuchuser: no matching entries in passwd file".to_owned(),
        "unable to find group nogroup: no matching entries in group file".to_owned(),
        "uids and gids must be in range 0-2147483647".to_owned(),
        format!("unable to find user app: read {OVERLAY}/etc/passwd: is a directory"),
        format!("evalSymlinksInScope: too many links in {OVERLAY}/etc/passwd"),
        "unable to find user app: bufio.Scanner: token too long".to_owned(),
        format!("lstat {OVERLAY}/etc/passwd/x: not a directory"),
        "Cannot mkdir: /etc/passwd is not a directory".to_owned(),
        "failed to create shim task: OCI runtime create failed: runc create failed: Cwd must be an absolute path: unknown"
            .to_owned(),
        format!("mkdir {OVERLAY}/{}: file name too long", "a".repeat(300)),
        format!("lstat {OVERLAY}/a\u{0}b: invalid argument"),
        format!("{RUNC}error during container init: environment variable name can't be empty: \"=x\": unknown"),
        mount(
            "/output",
            &format!("mount /data/executor/x/output:/output (via /proc/self/fd/6), flags: 0x5000: not a directory{HINT}"),
        ),
        mount("/output", &format!("SecureJoin {OVERLAY}/output/: too many levels of symbolic links: unknown")),
        mount("/output", &format!("\"{OVERLAY}/proc\" cannot be mounted because it is not of type proc: unknown")),
        mount("/var/tmp", &format!("mkdir {OVERLAY}/var: not a directory{HINT}")),
        mount("/sys/x", &format!("mkdir {OVERLAY}/sys/x: read-only file system: unknown")),
        format!(
            "{RUNC}error during container init: open /proc/sys/net/ipv4/ping_group_range: no such file or directory: unknown"
        ),
        format!("cannot mount volume over existing file, file exists {OVERLAY}/etc/passwd"),
        "invalid volume specification: ':/a'".to_owned(),
    ] {
        assert_eq!(judge(&words), (AnswerFault::Image, None), "{words}");
    }
    assert_eq!(
        judge("Duplicate mount point: /output/"),
        (AnswerFault::User, None)
    );
}

#[test]
fn docker_answers_about_a_program_have_a_shells_exit_code() {
    for (words, code) in [
        (
            "exec: \"/nope\": stat /nope: no such file or directory: unknown".to_owned(),
            127,
        ),
        (
            "exec: \"nope\": executable file not found in $PATH: unknown".to_owned(),
            127,
        ),
        (
            format!("exec: \"/etc/passwd/x\": stat /etc/passwd/x: not a directory{HINT}"),
            127,
        ),
        (
            "exec: \"/loop\": stat /loop: too many levels of symbolic links: unknown".to_owned(),
            127,
        ),
        (
            "exec: \"/a/a\": stat /a/a: file name too long: unknown".to_owned(),
            127,
        ),
        ("exec: \"/etc\": permission denied: unknown".to_owned(), 126),
        // moby 23 and later, built with Go 1.20.
        (
            "exec: \"/etc\": is a directory: unknown: permission denied".to_owned(),
            126,
        ),
        (
            "exec: \"/secret/s\": stat /secret/s: permission denied: unknown".to_owned(),
            126,
        ),
    ] {
        assert_eq!(
            judge(&format!("{RUNC}{words}")),
            (AnswerFault::User, Some(code)),
            "{words}"
        );
    }
    let answer = EngineAnswer::judge(&format!(
        "{RUNC}exec: \"nope\": executable file not found in $PATH: unknown"
    ));
    assert_eq!(answer.message, "the image has no such file or program: nope");
}

/// podman 4.3 repeats the profile, whose calls and errors are words of other rows.
#[test]
fn a_profile_in_an_answer_blames_no_image() {
    let words = "container create: opening seccomp profile failed: open {\"syscalls\": [{\"names\": [\"chdir\"]}]}: \
                 file name too long";
    assert_eq!(judge(words), (AnswerFault::Machine, None));
}

/// podman 4.3 with crun 1.8, and its own words with runc.
#[test]
fn podman_answers_are_judged_alike() {
    let crun = |words: &str| format!("/usr/bin/crun: {words}");
    for words in [
        "container create: no command or entrypoint provided, and no CMD or ENTRYPOINT from image".to_owned(),
        "creating container 84 workdir: mkdir /var/lib/containers/storage/overlay/c0/merged/etc/passwd: not a directory"
            .to_owned(),
        "workdir \"/etc/passwd\" exists on container ae, but is not a directory".to_owned(),
        crun("chdir `/loop/x`: Too many levels of symbolic links: OCI runtime error"),
        "/usr/sbin/runc: runc create failed: unable to start container process: error during container init: mkdir \
            /loop: file exists: OCI runtime error"
            .to_owned(),
        "container create: env fields from image failed to parse: invalid environment variable: \"=x\"".to_owned(),
        crun("mount `/data/executor/x` to `output`: Not a directory: OCI runtime error"),
        crun("openat2 `output`: Too many levels of symbolic links: OCI runtime error"),
        crun("mkdir `/var/tmp`: Not a directory: OCI runtime error"),
        crun("the target `/proc` is invalid: Not a directory: OCI runtime error"),
        "creating /etc/mtab symlink: not a directory".to_owned(),
        "resolving symlinks for mount destination /tmp: SecureJoin /var/lib/containers/x/tmp/: too many levels of \
            symbolic links"
            .to_owned(),
        crun("failed open()ing /dev/null: No such file or directory: OCI runtime attempted to invoke a command that was not found"),
        "identifying source directory for copy up into volume fd: lstat /var/lib/containers/x/etc/passwd/x: not a directory"
            .to_owned(),
        "container create: invalid signal: NOPE".to_owned(),
    ] {
        assert_eq!(judge(&words), (AnswerFault::Image, None), "{words}");
    }
    for (words, code) in [
        (
            "executable file `/nope` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command that was not found",
            127,
        ),
        ("open executable: Not a directory: OCI runtime error", 127),
        ("open executable: Permission denied: OCI permission denied", 126),
    ] {
        assert_eq!(judge(&crun(words)), (AnswerFault::User, Some(code)), "{words}");
    }
}

#[test]
fn faults_of_the_machine_and_unknown_answers_blame_no_image() {
    for words in [
        "write /var/lib/docker/tmp/x: no space left on device",
        "Unknown runtime specified nope",
        "could not select device driver \"nvidia\" with capabilities: [[gpu]]",
        "invalid mount config for type \"bind\": bind source path does not exist: /data/executor/x",
        "/usr/bin/crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2: OCI runtime error",
        "crun: error while loading shared libraries: libyajl.so.2: cannot open shared object file: No such file or \
            directory: OCI runtime attempted to invoke a command that was not found",
        "/usr/bin/crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied",
    ] {
        assert_eq!(judge(words), (AnswerFault::Machine, None), "{words}");
    }
    for words in [
        "shim reaped",
        "",
        "no such container: x",
        "OCI runtime create failed: unknown",
    ] {
        assert_eq!(judge(words), (AnswerFault::Unknown, None), "{words}");
    }
}

#[test]
fn an_image_cannot_make_its_fault_look_like_its_machines() {
    for user in [
        "x no space left on device",
        "cgroup",
        "unknown runtime",
        "x: input/output error",
    ] {
        let words = format!("unable to find user {user}: no matching entries in passwd file");
        assert_eq!(judge(&words).0, AnswerFault::Image, "{words}");
    }
    let words = format!(
        "{RUNC}error during container init: error mounting \"/data/executor/a\" to rootfs at \"/no space left on \
        device\": mkdir {OVERLAY}/x: not a directory{HINT}"
    );
    assert_eq!(judge(&words).0, AnswerFault::Image);
}

#[test]
fn a_user_reads_the_paths_of_the_container_alone() {
    let told = |words: &str| EngineAnswer::judge(words).message;
    let mount = format!(
        "{RUNC}error during container init: error mounting \"/data/executor/x/output\" to rootfs at \"/output\": mount \
        /data/executor/x/output:/output (via /proc/self/fd/6), flags: 0x5000: not a directory{HINT}"
    );
    assert_eq!(
        told(&mount),
        "the image has a file, a link or nothing usable where the job needs a folder: /output"
    );
    assert_eq!(
        told(&format!(
            "unable to find user app: read {OVERLAY}/etc/passwd: is a directory"
        )),
        "the image's USER is not in its /etc/passwd: unable to find user app: read /etc/passwd: is a directory"
    );
    assert_eq!(
        told(&format!(
            "strange at {OVERLAY}/a/b and /var/lib/docker/x and /run/containerd/y"
        )),
        format!("strange at /a/b and {HIDDEN} and {HIDDEN}")
    );
    let folders = ["/srv/muster".to_owned()];
    assert_eq!(
        hide_paths(
            "ghcr.io/a/b at /srv/muster/work/x: /srv/musterless /volume https://h/sha256/00",
            &folders
        ),
        format!("ghcr.io/a/b at {HIDDEN}: /srv/musterless /volume https://h/sha256/00")
    );
}
