//! Words of other command lines, docker's above all, that have another name here: an error about one says which.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _, Error};

use super::Cli;

/// The tip for a pattern that the shell has expanded.
const QUOTE_PATTERN: &str =
    "if that was a pattern, the shell has put your files in its place: quote it, `-o '*.csv'`";

/// The tip for all jobs of a list.
const ALL_LISTED: &str = "jobs of every state are listed, the newest first; `-n N` shows more of them";

/// The tip for a change beside `--again`.
const REPEATED: &str = "`--again` repeats a job as it was: for another one write the whole command, or put it into a \
                        file for --spec and change values by --set";

/// The option before whose value [`WITHOUT_PATH`] is told.
const INPUT: &[&str] = &["-i", "--input"];

/// The tip for `-i` where docker's was meant.
const WITHOUT_PATH: &str = "`-i PATH=FILE` names an input here; `-i -` gives standard input to the program, and no \
                            program gets a terminal";

/// Commands of other programs, with the command that does it here.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["run", "submit", "create", "start", "docker"],
        "`muster job run IMAGE -- PROGRAM` runs a program",
    ),
    (
        &["ps", "jobs", "list", "ls", "history"],
        "`muster job ls` lists your jobs, `muster job ls -s open` those that have not ended",
    ),
    (
        &["log", "logs", "attach", "tail"],
        "`muster job logs --follow JOB`",
    ),
    (&["wait"], "`muster job wait JOB`"),
    (
        &["inspect", "status", "describe", "show"],
        "`muster job show JOB`; `muster top` watches all of yours",
    ),
    (
        &["cancel", "stop", "kill", "rm", "delete"],
        "`muster job cancel JOB` stops a job; jobs that have ended stay listed for a while",
    ),
    (
        &["rerun", "retry", "again", "restart", "repeat"],
        "`muster job run --again JOB` runs one once more",
    ),
    (&["version"], "`muster --version`"),
    (
        &["metrics", "plot", "stats"],
        "`muster job curve JOB` draws the metrics",
    ),
    (
        &["resume", "continue"],
        "`muster job run --again JOB --resume-from JOB` goes on from the newest checkpoint",
    ),
    (&["down"], "Ctrl-C in its terminal ends the subnet of `muster up`"),
    (
        &["get", "cp", "fetch", "download", "result", "results", "outputs"],
        "`muster job get JOB` fetches what a job left; `muster job run -i PATH=FILE` brings files there",
    ),
    (
        &["exec", "shell", "sh", "ssh", "bash"],
        "no command can be run inside a job: put it into the job's own program",
    ),
    (
        &["build", "pull", "push", "images", "image", "save", "load"],
        "docker makes images: `docker save IMAGE > FILE`, then `muster job run --image-archive FILE`",
    ),
    (
        &["models", "model"],
        "`muster subnet` lists the models; `muster chat MODEL` talks to one",
    ),
    (&["ask", "prompt", "generate"], "`muster chat MODEL -m TEXT`"),
    (
        &["serve", "proxy", "port", "port-forward"],
        "`muster forward MODEL` serves a model on a port of this machine",
    ),
    (&["verify", "proofs"], "`muster proof verify FILE`"),
    (
        &[
            "classes", "capacity", "offers", "hardware", "nodes", "miners", "info",
        ],
        "`muster subnet` lists what is offered",
    ),
    (&["upload", "put"], "`muster files put FILE`"),
    (&["whoami", "me", "user"], "`muster account show`"),
];

/// Options of other programs' `run`, with what there is here.
const OPTIONS: &[(&[&str], &str)] = &[
    (&["--rm"], "leave it out: nothing of a job's container stays"),
    (
        &["-v", "--volume", "--mount", "--volumes-from"],
        "`-i PATH=FOLDER` brings a file or a folder to /volume/PATH, and `-o NAME` fetches what is at /output/NAME",
    ),
    (
        &["-t", "--tty", "--interactive", "--stdin"],
        "no program gets a terminal here; `-i -` gives it standard input",
    ),
    (
        &[
            "-p",
            "-P",
            "--publish",
            "--publish-all",
            "--expose",
            "--network",
            "--net",
            "--dns",
            "--add-host",
            "--link",
        ],
        "no job has a network; inputs and outputs travel by -i and -o",
    ),
    (
        &[
            "-u",
            "--user",
            "--privileged",
            "--cap-add",
            "--cap-drop",
            "--security-opt",
            "--device",
            "--ipc",
            "--pid",
        ],
        "the sandbox is the same for every job: leave it out",
    ),
    (
        &[
            "-m",
            "-c",
            "--cpus",
            "--cpu-shares",
            "--cpuset-cpus",
            "--shm-size",
            "--ulimit",
        ],
        "the class of executor decides: --class, --gpus or --memory chooses one",
    ),
    (
        &["--restart"],
        "`--retries N` submits the job again if others failed it",
    ),
    (
        &["--tmpfs", "--read-only"],
        "a program may write below /output, /volume, /tmp and its home folder: leave it out",
    ),
    (
        &["--pull", "--platform"],
        "the executor fetches the image for itself: leave it out",
    ),
    (&["-l", "--label"], "`--name NAME` names the job"),
    (
        &["--image"],
        "the image stands by itself: muster job run IMAGE -- PROGRAM",
    ),
    (
        &[
            "--init",
            "-h",
            "--hostname",
            "--log-driver",
            "--sysctl",
            "--cgroupns",
            "--cgroup-parent",
            "--uts",
        ],
        "leave it out: a job has none of it",
    ),
    (
        &["-a", "--attach", "--follow", "-f"],
        "`muster job run` shows the output until the end, without -d",
    ),
];

/// Makes an error of the arguments say what is meant here: the words of this command in place of another program's,
/// and the usage of the command without what the environment sets.
pub(crate) fn explain_in_own_words(told: &mut Error, words: &[String]) {
    let tips = tips(told, words);
    if !tips.is_empty() {
        told.remove(ContextKind::SuggestedArg);
        told.remove(ContextKind::SuggestedSubcommand);
        let tips = tips.into_iter().map(StyledStr::from).collect();
        told.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    if told.get(ContextKind::Usage).is_some() {
        let usage = command_of(words).render_usage();
        told.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
}

/// The command that the words name, as far as they name one.
fn command_of(words: &[String]) -> Command {
    let mut root = Cli::command();
    root.build();
    let mut found = &root;
    for name in words.iter().skip(1) {
        let Some(next) = found.find_subcommand(name) else {
            break;
        };
        found = next;
    }
    found.clone()
}

/// The tips: each says one thing to write instead.
fn tips(told: &Error, words: &[String]) -> Vec<String> {
    let arguments: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    let refused = |kind| match told.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(_) | None => None,
    };
    match (told.kind(), arguments.as_slice()) {
        (ErrorKind::InvalidSubcommand, ["proof", ..]) => {
            vec!["`muster proof verify FILE` checks what `muster chat --save` wrote".to_owned()]
        }
        (ErrorKind::InvalidSubcommand, [first, ..]) => {
            let command = refused(ContextKind::InvalidSubcommand).unwrap_or_default();
            let is_here = [command, "job"].contains(first);
            let tip = listed(COMMANDS, command).filter(|_| is_here);
            tip.into_iter().collect()
        }
        (ErrorKind::UnknownArgument, ["job", "run", rest @ ..]) => {
            let option = refused(ContextKind::InvalidArg).unwrap_or_default();
            let name = option.split('=').next().unwrap_or(option);
            let separator = (!rest.contains(&"--")).then(|| {
                "put `--` before the program and its own options: muster job run IMAGE -- PROGRAM ARGUMENTS".to_owned()
            });
            let pattern = is_expanded(rest).then(|| QUOTE_PATTERN.to_owned());
            listed(OPTIONS, name)
                .into_iter()
                .chain(pattern)
                .chain(separator)
                .collect()
        }
        (ErrorKind::UnknownArgument, ["job", "ls" | "list", ..]) => {
            let is_all =
                refused(ContextKind::InvalidArg).is_some_and(|option| ["-a", "--all"].contains(&option));
            is_all.then(|| ALL_LISTED.to_owned()).into_iter().collect()
        }
        (ErrorKind::UnknownArgument, ["chat", ..]) => {
            vec!["`muster chat MODEL -m TEXT` asks one question".to_owned()]
        }
        (ErrorKind::UnknownArgument, ["subnet", ..]) => vec!["`muster subnet` stands by itself".to_owned()],
        (ErrorKind::MissingRequiredArgument, ["job", "run", rest @ ..]) => {
            let before = rest.iter().take_while(|word| **word != "--");
            let pairs = before.clone().zip(before.skip(1));
            let is_dockers = |(option, value): (&&str, &&str)| INPUT.contains(option) && is_no_input(value);
            let found = pairs.into_iter().any(is_dockers);
            found.then(|| WITHOUT_PATH.to_owned()).into_iter().collect()
        }
        (ErrorKind::ArgumentConflict, ["job", "run", rest @ ..]) => {
            let is_again = rest.iter().any(|word| word.starts_with("--again"));
            is_again.then(|| REPEATED.to_owned()).into_iter().collect()
        }
        (ErrorKind::ValueValidation, _) if refused(ContextKind::InvalidArg).is_some_and(is_class) => {
            vec!["`muster subnet` lists the classes that are offered now".to_owned()]
        }
        (_, _) => Vec::new(),
    }
}

/// Whether a word behind `-o` and the next one have the same ending, as files of a pattern have.
fn is_expanded(words: &[&str]) -> bool {
    let ending = |word: &str| word.rsplit_once('.').map(|(_, ending)| ending.to_owned());
    let triples = words.iter().zip(words.iter().skip(1)).zip(words.iter().skip(2));
    triples
        .filter(|((option, _), _)| ["-o", "--output"].contains(option))
        .any(|((_, first), second)| ending(first).is_some_and(|first| ending(second) == Some(first)))
}

fn is_no_input(value: &str) -> bool {
    value != "-" && !value.contains('=')
}

fn is_class(argument: &str) -> bool {
    argument.starts_with("--class")
}

fn listed(table: &[(&[&str], &str)], word: &str) -> Option<String> {
    let found = table.iter().find(|(words, _)| words.contains(&word));
    found.map(|(_, here)| (*here).to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn refusal(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let mut told = Cli::try_parse_from(&words).unwrap_err();
        explain_in_own_words(&mut told, &words);
        told.render().to_string()
    }

    #[test]
    fn words_of_docker_are_answered_with_those_of_this_command() {
        for (line, tip) in [
            ("muster run --rm alpine ls", "tip: `muster job run IMAGE"),
            ("muster ps", "tip: `muster job ls`"),
            ("muster job ps", "tip: `muster job ls`"),
            (
                "muster job exec x -- sh",
                "tip: no command can be run inside a job",
            ),
            ("muster serve tiny", "tip: `muster forward MODEL`"),
            ("muster verify answer.json", "tip: `muster proof verify FILE`"),
            ("muster job run --rm alpine -- ls", "tip: leave it out"),
            ("muster job run -v /a:/b alpine -- ls", "tip: `-i PATH=FOLDER`"),
            (
                "muster job run --volume=/a:/b alpine -- ls",
                "tip: `-i PATH=FOLDER`",
            ),
            (
                "muster job run -t alpine -- ls",
                "tip: no program gets a terminal",
            ),
            (
                "muster job run -m 8g alpine -- ls",
                "tip: the class of executor decides",
            ),
            ("muster job run -i alpine -- cat", "`-i -` gives standard input"),
            (
                "muster job run --class gpu alpine -- ls",
                "tip: `muster subnet` lists the classes",
            ),
            ("muster job run alpine ls -l", "put `--` before the program"),
            ("muster job run -o 1.csv 2.csv alpine -- ls", "quote it"),
            ("muster job run --again train --timeout 20", "--spec"),
            ("muster job rerun train", "`muster job run --again JOB`"),
            ("muster job ls --all", "of every state are listed"),
            ("muster chat parrot Polly", "-m TEXT"),
            ("muster proof answer.json", "`muster proof verify FILE`"),
            ("muster subnet ls", "stands by itself"),
        ] {
            let told = refusal(line);
            assert!(told.contains(tip), "{line}: {told}");
            assert_eq!(told.matches("similar").count(), 0, "{line}: {told}");
        }
    }

    #[test]
    fn other_mistakes_keep_the_hints_of_the_parser() {
        assert!(refusal("muster job cancle x").contains("'cancel'"));
        assert!(refusal("muster job run --detatch alpine -- ls").contains("'--detach'"));
        assert!(!refusal("muster files ps").contains("muster job ls"));
        assert!(!refusal("muster job run -i a=b -- ls").contains("standard input"));
    }

    #[test]
    fn usage_in_an_error_has_nothing_of_the_environment() {
        let told = refusal("muster job run --dir x --rm alpine -- ls");
        assert!(told.contains("Usage: muster job run [OPTIONS]"), "{told}");
    }

    #[test]
    fn every_command_that_is_named_instead_exists() {
        let mut root = Cli::command();
        root.build();
        for (words, here) in COMMANDS.iter().chain(OPTIONS) {
            for quoted in here.split('`').skip(1).step_by(2) {
                let mut command = &root;
                let mut rest = quoted.split(' ').peekable();
                if rest.next() != Some("muster") {
                    continue;
                }
                while let Some(next) = rest.peek().and_then(|word| command.find_subcommand(word)) {
                    command = next;
                    rest.next();
                }
                let is_whole =
                    !command.has_subcommands() || rest.peek().is_some_and(|word| word.starts_with('-'));
                assert!(is_whole, "{words:?}: {quoted}");
            }
        }
    }

    #[test]
    fn no_word_of_another_program_is_one_of_this_one() {
        let known = |command: &Command, word: &str| {
            let option = command.get_arguments().any(|argument| {
                let long = argument.get_long().map(|long| format!("--{long}"));
                let short = argument.get_short().map(|short| format!("-{short}"));
                [long, short].contains(&Some(word.to_owned()))
            });
            option || command.find_subcommand(word).is_some()
        };
        let root = Cli::command();
        let run = root
            .find_subcommand("job")
            .and_then(|job| job.find_subcommand("run"))
            .unwrap();
        for (words, _) in OPTIONS {
            for word in *words {
                assert!(!known(run, word), "{word}");
            }
        }
    }
}
