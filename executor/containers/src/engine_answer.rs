//! Judges what an engine answers when it cannot create or start a container: whose fault it is, and how its user is
//! told. Pure.
//!
//! Engines answer in prose, and their status codes mislead: an unknown user of the image is a 500, and a mount over a
//! file a 400. So the words are judged, whatever the status. An image chooses a part of these words (its user, its
//! folders, its program). Therefore the rows about images come first: no image can make its own fault look like its
//! machine's. The words were taken from Docker 20.10 with runc 1.1 and from podman 4.3 with runc 1.1 and crun 1.8,
//! by images with each fault; the sources of moby 23 to 29 have the same ones.

use crate::pull_error::make_safe;

/// The party at fault, as an engine's answer shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFault {
    /// The image cannot be started on any machine, or the job's program is not in it.
    Image,
    /// The job itself asks for something that no container can have.
    User,
    /// This machine or its engine lacks something that the job does not choose.
    Machine,
    /// The words show nobody's fault.
    Unknown,
}

/// An engine's answer, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineAnswer {
    /// The party at fault.
    pub fault: AnswerFault,
    /// The answer as a user may read it: without paths of the machine.
    pub message: String,
    /// The exit code that a shell gives a program that cannot be started: 127 if it is missing, 126 if it may not be
    /// executed. `None` if the fault lies elsewhere.
    pub exit_code: Option<i64>,
}

/// The exit codes of a shell whose program is not found, or may not be executed.
const NOT_FOUND: i64 = 127;
const NOT_EXECUTABLE: i64 = 126;

/// One row of the table: the answers that hold one of `any` and one of `and`, in lower case. Empty lists hold always.
struct AnswerRow {
    any: &'static [&'static str],
    and: &'static [&'static str],
    fault: AnswerFault,
    /// The row's words for users.
    meaning: &'static str,
    /// How the answer names the place in the container, or the program.
    named: Named,
}

/// The way in which an answer names its subject.
#[derive(Clone, Copy)]
enum Named {
    /// It is not named, or the meaning says enough.
    Not,
    /// The engine's own words are shown, from this text on.
    From(&'static str),
    /// The place of a mount, quoted after one of these texts.
    Quoted(&'static [&'static str]),
    /// A program, quoted after one of these texts, which cannot be started: 126, or 127.
    Program(&'static [&'static str], i64),
}

/// The endings of answers about a path that does not fit the image's files, by the kernel's error.
const BAD_PATH: &[&str] = &[
    "not a directory",
    "is a directory",
    "too many levels of symbolic links",
    "too many links",
    "file name too long",
    "file exists",
];

/// The endings of answers about a place that cannot be mounted over.
const BAD_PLACE: &[&str] = &[
    "not a directory",
    "is a directory",
    "too many levels of symbolic links",
    "too many links",
    "file name too long",
    "file exists",
    // runc: a folder of the job in /proc, to which a link of the image leads.
    "cannot be mounted because it is",
    "must be mounted on ordinary directory",
    // runc: a folder of the job below /sys.
    "read-only file system",
];

/// The texts of runtimes before a place in the container: of runc, then of crun.
const PLACE: &[&str] = &[
    "to rootfs at ",
    "` to ",
    "crun: mkdir ",
    "crun: openat2 ",
    "the target ",
];

const fn row(
    any: &'static [&'static str],
    and: &'static [&'static str],
    fault: AnswerFault,
    meaning: &'static str,
    named: Named,
) -> AnswerRow {
    AnswerRow {
        any,
        and,
        fault,
        meaning,
        named,
    }
}

use AnswerFault::{Image, Machine, User};

/// The table, in the order in which it is read.
const TABLE: &[AnswerRow] = &[
    // podman pkg/specgen/generate/seccomp: the answer holds the profile, which has words of many rows.
    row(
        &["opening seccomp profile failed"],
        &[],
        Machine,
        "the engine of the executor cannot read the system calls that jobs may make",
        Named::Not,
    ),
    // moby daemon/create.go (20.10: "No command specified"); podman pkg/specgen/generate/oci.go.
    row(
        &["no command specified", "no command or entrypoint provided"],
        &[],
        Image,
        "neither the job nor its image names a program (CMD or ENTRYPOINT)",
        Named::Not,
    ),
    // moby/sys/user and runc libcontainer/user, which podman uses too.
    row(
        &["unable to find user"],
        &[
            "no matching entries",
            "is a directory",
            "not a directory",
            "token too long",
        ],
        Image,
        "the image's USER is not in its /etc/passwd",
        Named::From("unable to find user"),
    ),
    row(
        &["unable to find group"],
        &[
            "no matching entries",
            "is a directory",
            "not a directory",
            "token too long",
        ],
        Image,
        "a group of the image's USER is not in its /etc/group",
        Named::From("unable to find group"),
    ),
    row(
        &["uids and gids must be in range"],
        &[],
        Image,
        "the image's USER is no number of a user",
        Named::From("uids and gids"),
    ),
    // crun and runc: the program. Before the rows about places, whose endings these answers share. The remark that the
    // engine appends ("attempted to invoke a command that was not found") also follows faults of the machine.
    row(
        &["exec: \"", "executable file `"],
        &[
            "no such file or directory",
            "executable file not found",
            "not found in $path",
        ],
        User,
        "the image has no such file or program",
        Named::Program(&["exec: ", "executable file "], NOT_FOUND),
    ),
    row(
        &["exec: \""],
        &[
            "not a directory",
            "too many levels of symbolic links",
            "file name too long",
        ],
        User,
        "the path of the program leads to no file of the image",
        Named::Program(&["exec: "], NOT_FOUND),
    ),
    row(
        &["exec: \"", "exec user process"],
        &[
            "permission denied",
            "is a directory",
            "operation not permitted",
            "exec format error",
            "invalid argument",
            "argument list too long",
        ],
        User,
        "the program is no file that the image's user may execute on this machine",
        Named::Program(&["exec: "], NOT_EXECUTABLE),
    ),
    row(
        &["crun: open executable: ", "exec container process"],
        &[
            "not a directory",
            "too many levels of symbolic links",
            "file name too long",
            "no such file or directory",
        ],
        User,
        "the path of the program leads to no file of the image",
        Named::Program(&[], NOT_FOUND),
    ),
    row(
        &["crun: open executable: ", "exec container process"],
        &[
            "permission denied",
            "operation not permitted",
            "exec format error",
            "argument list too long",
        ],
        User,
        "the program is no file that the image's user may execute on this machine",
        Named::Program(&[], NOT_EXECUTABLE),
    ),
    // moby daemon/create_unix.go: a VOLUME on a file.
    row(
        &["cannot mount volume over existing file"],
        &[],
        Image,
        "a VOLUME of the image is a file in it",
        Named::Not,
    ),
    // moby container/container.go and the runtimes' chdir: WORKDIR.
    row(
        &[
            "cannot mkdir: ",
            "workdir",
            "chdir",
            "cwd must be an absolute path",
            "needs to be an absolute path",
            "error during container init: mkdir ",
        ],
        &[
            "is not a directory",
            "not a directory",
            "too many levels of symbolic links",
            "file name too long",
            "invalid argument",
            "permission denied",
            "absolute path",
            "no such file or directory",
            "file exists",
        ],
        Image,
        "the working directory of the image, or of the job, is no folder that its user may enter",
        Named::Not,
    ),
    // runc libcontainer/rootfs_linux.go, crun libcrun/linux.c: a place of a mount.
    row(
        PLACE,
        BAD_PLACE,
        Image,
        "the image has a file, a link or nothing usable where the job needs a folder",
        Named::Quoted(PLACE),
    ),
    // crun: a VOLUME below /proc or /sys, or at the root.
    row(
        &["crun: mkdir `/proc", "crun: mkdir `/sys", "_data` to ``"],
        &[],
        Image,
        "a VOLUME of the image lies over a folder of the system",
        Named::Not,
    ),
    row(
        &[
            "resolving symlinks for mount destination ",
            "creating /etc/mtab symlink",
        ],
        BAD_PATH,
        Image,
        "the image has a file or a link where the job needs a folder",
        Named::Not,
    ),
    // moby/sys/symlink, at the creation: WORKDIR, VOLUME or /etc/passwd is a link that leads to itself.
    row(
        &["evalsymlinksinscope", "securejoin"],
        BAD_PATH,
        Image,
        "a path of the image (WORKDIR, VOLUME or /etc/passwd) is a link that leads nowhere",
        Named::Not,
    ),
    // A VOLUME or a link of the image lies over /proc or /dev.
    row(
        &[
            "container init: open /proc/",
            "closing exec fds",
            "open()ing /dev/null",
        ],
        &["no such file or directory"],
        Image,
        "the image covers /proc or /dev, for example by a VOLUME",
        Named::Not,
    ),
    // runc libcontainer/env.go; podman's specgen.
    row(
        &["environment variable"],
        &[
            "can't be empty",
            "can't contain null",
            "invalid environment variable",
            "failed to parse",
        ],
        Image,
        "a variable of the image (ENV) has no valid name or value",
        Named::Not,
    ),
    row(
        &["invalid signal"],
        &[],
        Image,
        "the image's STOPSIGNAL is no signal",
        Named::Not,
    ),
    row(
        &[
            "does not match the specified platform",
            "cannot be used on this platform",
            "unknown operating system",
        ],
        &[],
        Image,
        "the image is for another platform",
        Named::Not,
    ),
    row(
        &["duplicate mount point", "duplicate mount destination"],
        &[],
        User,
        "two folders of the job, or one and a VOLUME of the image, lie at the same place",
        Named::Not,
    ),
    // moby daemon/volumes.go, of a bind of ours.
    row(
        &["bind source path does not exist"],
        &[],
        Machine,
        "a folder of the job is gone from the executor's disk",
        Named::Not,
    ),
    row(
        &[
            "invalid volume specification",
            "invalid mount path",
            "invalid mount option",
            "invalid mount config",
            "invalid volume",
        ],
        &[],
        Image,
        "a VOLUME of the image is no path in a container",
        Named::Not,
    ),
    // The creation of a container looks into the image: WORKDIR and VOLUMEs below a file.
    row(
        &["lstat /", "mkdir /"],
        &["not a directory", "file name too long", "invalid argument"],
        Image,
        "a path of the image (WORKDIR or VOLUME) lies below a file, or is no path",
        Named::Not,
    ),
    row(
        &[
            "no space left on device",
            "disk quota exceeded",
            "cannot allocate memory",
            "too many open files",
            "input/output error",
            "resource temporarily unavailable",
        ],
        &[],
        Machine,
        "the executor's machine is short of something",
        Named::Not,
    ),
    row(
        &[
            "unknown runtime",
            "unknown or invalid runtime",
            "could not select device driver",
            "nvidia-container",
            "range of cpus is from",
            "minimum memory limit",
            "cgroup",
            "seccomp",
            "setrlimit",
            "error while loading shared libraries",
            "ttrpc",
            "context deadline exceeded",
            "connection refused",
        ],
        &[],
        Machine,
        "the engine of the executor cannot run jobs as it is set up",
        Named::Not,
    ),
];

impl EngineAnswer {
    /// Judges the words in which an engine refused to create or to start a container, or failed at it.
    pub fn judge(words: &str) -> Self {
        let lower = words.to_ascii_lowercase();
        let holds =
            |phrases: &[&str]| phrases.is_empty() || phrases.iter().any(|phrase| lower.contains(phrase));
        let Some(row) = TABLE.iter().find(|row| holds(row.any) && holds(row.and)) else {
            return Self {
                fault: AnswerFault::Unknown,
                message: without_host_paths(&make_safe(words)),
                exit_code: None,
            };
        };
        let (detail, exit_code) = match row.named {
            Named::Not => (None, None),
            Named::From(begin) => (text_from(words, &lower, begin), None),
            Named::Quoted(before) => (quoted_after(words, &lower, before), None),
            Named::Program(before, code) => (quoted_after(words, &lower, before), Some(code)),
        };
        let detail = detail.map(|detail| without_host_paths(&make_safe(detail)));
        let message = match detail.filter(|detail| !detail.is_empty()) {
            Some(detail) => format!("{}: {detail}", row.meaning),
            None => row.meaning.to_owned(),
        };
        Self {
            fault: row.fault,
            message,
            exit_code,
        }
    }
}

/// The part of `words` that begins with `begin`. Lowering ASCII letters keeps every byte in its place.
fn text_from<'a>(words: &'a str, lower: &str, begin: &str) -> Option<&'a str> {
    words.get(lower.find(begin)?..)
}

/// The text in quotation marks after the first of `before` that has one.
fn quoted_after<'a>(words: &'a str, lower: &str, before: &[&str]) -> Option<&'a str> {
    before.iter().find_map(|before| {
        let rest = words.get(lower.find(before)?.saturating_add(before.len())..)?;
        let mark = rest.chars().next().filter(|mark| matches!(mark, '"' | '`'))?;
        rest.get(1..)?.split(mark).next()
    })
}

/// Hexadecimal digits in a row that make a component of a path an engine's id.
const ID_DIGITS: usize = 32;
/// The folders in which engines keep a container's root below its id.
const ROOTS: [&str; 5] = ["merged", "rootfs", "diff", "fs", "_data"];
/// Folders of engines, none of which a job has.
const ENGINE_FOLDERS: [&str; 8] = [
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/run/docker",
    "/run/containerd",
    "/run/docker",
    "/run/runc",
    "/run/crun",
];
/// The text in place of a path of the machine.
const HIDDEN: &str = "(a path of the executor)";

/// An engine's words without its paths: a path in a container's root is cut down to the path that the container sees,
/// and any other path with an engine's id is hidden.
fn without_host_paths(words: &str) -> String {
    replace_paths(words, |path| {
        if path.split('/').any(is_id) {
            path_inside(path).or(Some(HIDDEN.to_owned()))
        } else {
            is_below(path, ENGINE_FOLDERS).then(|| HIDDEN.to_owned())
        }
    })
}

/// A text without paths of engines and without paths in `folders`, which are absolute.
pub fn hide_paths(text: &str, folders: &[String]) -> String {
    let folders = || folders.iter().map(String::as_str).chain(ENGINE_FOLDERS);
    replace_paths(text, |path| is_below(path, folders()).then(|| HIDDEN.to_owned()))
}

/// A text in which each part that begins with a slash is replaced by `replace`, unless that returns `None`.
fn replace_paths(text: &str, replace: impl Fn(&str) -> Option<String>) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        let (before, path_on) = rest.split_at(start);
        let end = path_on.find(ends_path).unwrap_or(path_on.len());
        let (path, after) = path_on.split_at(end);
        shown.push_str(before);
        match replace(path) {
            Some(replaced) => shown.push_str(&replaced),
            None => shown.push_str(path),
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// Whether a character ends a path in a message. Colons separate the two sides of a mount.
const fn ends_path(c: char) -> bool {
    matches!(
        c,
        ' ' | '"' | '`' | '\'' | ':' | ',' | ';' | ')' | '(' | '\n' | '\t'
    )
}

fn is_id(component: &str) -> bool {
    let name = component.split(['-', '.', '_']).next().unwrap_or_default();
    name.len() >= ID_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_below<'a>(path: &str, folders: impl IntoIterator<Item = &'a str>) -> bool {
    folders.into_iter().any(|folder| {
        let rest = path.strip_prefix(folder).filter(|_| !folder.is_empty());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// The path that the container sees, of one in the folder of its root; `None` for any other path.
fn path_inside(path: &str) -> Option<String> {
    let mut below = path.split('/').skip_while(|part| !is_id(part)).skip(1);
    below.next().filter(|part| ROOTS.contains(part))?;
    let inside: Vec<_> = below.collect();
    (!inside.is_empty()).then(|| format!("/{}", inside.join("/")))
}

#[cfg(test)]
mod tests;
