//! Words of other command lines, docker's above all, that have another name here: an error about one says which.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _, Error};

use super::Cli;

/// The tip for a pattern that the shell has expanded.
const QUOTE_PATTERN: &str =
    "if that was a pattern, the shell has put your files in its place: quote it, `-o '*.csv'`";

/// The tip for a program without `--` before it.
const SEPARATE: &str =
    "put `--` before the program and its own options: muster job run IMAGE -- PROGRAM ARGUMENTS";

/// The tip for a class that does not exist.
const OFFERED_CLASSES: &str = "`muster subnet` lists the classes that are offered now";

/// The tip for a question as an argument.
const ONE_QUESTION: &str = "`muster chat MODEL -m TEXT` asks one question";

/// The tip for a subcommand of `muster subnet`.
const SUBNET_ALONE: &str = "`muster subnet` stands by itself";

/// The tip for a file behind `muster proof`.
const VERIFY: &str = "`muster proof verify FILE` checks what `muster chat --save` wrote";

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
/// and the usage of the command without what the environment sets. General advice stands beside the parser's guess,
/// which is better for a word that was misspelt.
pub(crate) fn explain_in_own_words(told: &mut Error, words: &[String]) {
    let before: Vec<&str> = words
        .iter()
        .skip(1)
        .map(String::as_str)
        .take_while(|word| *word != "--")
        .collect();
    let has_separator = before.len() < words.len().saturating_sub(1);
    let meant = meant(told, &before);
    let advice = advice(told, &before, has_separator);
    if meant.is_some() {
        told.remove(ContextKind::SuggestedArg);
        told.remove(ContextKind::SuggestedSubcommand);
    }
    let tips: Vec<_> = meant.into_iter().chain(advice).map(StyledStr::from).collect();
    if !tips.is_empty() {
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

/// The word or the option that the error is about.
fn refused(told: &Error, kind: ContextKind) -> &str {
    match told.get(kind) {
        Some(ContextValue::String(text)) => text,
        Some(_) | None => "",
    }
}

/// The words of this command for the word that was refused, if it is one of another program's. `before` has the
/// arguments in front of `--`.
fn meant(told: &Error, before: &[&str]) -> Option<&'static str> {
    match (told.kind(), before) {
        (ErrorKind::InvalidSubcommand, ["proof", ..]) => Some(VERIFY),
        (ErrorKind::InvalidSubcommand, [first, ..]) => {
            let command = refused(told, ContextKind::InvalidSubcommand);
            listed(COMMANDS, command).filter(|_| [command, "job"].contains(first))
        }
        (ErrorKind::UnknownArgument, [first, rest @ ..]) => {
            let word = refused(told, ContextKind::InvalidArg);
            let name = word.split('=').next().unwrap_or(word);
            match (*first, rest) {
                ("job", ["run", ..]) => listed(OPTIONS, name),
                ("job", ["ls" | "list", ..]) => ["-a", "--all"].contains(&name).then_some(ALL_LISTED),
                ("chat", _) => (!word.starts_with('-')).then_some(ONE_QUESTION),
                ("subnet", _) => (!word.starts_with('-')).then_some(SUBNET_ALONE),
                _ => None,
            }
        }
        (_, _) => None,
    }
}

/// Advice about the whole command line.
fn advice(told: &Error, before: &[&str], has_separator: bool) -> Vec<&'static str> {
    match (told.kind(), before) {
        (ErrorKind::UnknownArgument, ["job", "run", rest @ ..]) => {
            let pattern = is_expanded(rest).then_some(QUOTE_PATTERN);
            let separator = (!has_separator).then_some(SEPARATE);
            pattern.into_iter().chain(separator).collect()
        }
        (ErrorKind::MissingRequiredArgument, ["job", "run", rest @ ..]) => {
            let mut pairs = rest.iter().zip(rest.iter().skip(1));
            let is_dockers = pairs.any(|(option, value)| INPUT.contains(option) && is_no_input(value));
            is_dockers.then_some(WITHOUT_PATH).into_iter().collect()
        }
        (ErrorKind::ArgumentConflict, ["job", "run", rest @ ..]) => {
            let is_again = rest.iter().any(|word| word.starts_with("--again"));
            is_again.then_some(REPEATED).into_iter().collect()
        }
        (ErrorKind::ValueValidation, _) => {
            let is_class = refused(told, ContextKind::InvalidArg).starts_with("--class");
            is_class.then_some(OFFERED_CLASSES).into_iter().collect()
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

fn listed(table: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    let found = table.iter().find(|(words, _)| words.contains(&word));
    found.map(|(_, here)| *here)
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
        for detached in [
            "muster job run --detatch alpine -- ls",
            "muster job run --detatch alpine",
        ] {
            assert!(refusal(detached).contains("'--detach'"), "{detached}");
        }
        assert!(refusal("muster chat --mesage hi").contains("'--message'"));
        assert!(refusal("muster subnet --clas x").contains("'--class'"));
        assert!(!refusal("muster job run --spec f --timeout 5 -- x --again").contains("repeats a job"));
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
