//! Completion in a shell: the words of the command line from [`Cli`], and values that only the facilitator knows from a
//! cache in the user's folder.
//!
//! The shell runs this program with [`VARIABLE`] at each Tab. Values that are a minute old at most are shown at once,
//! and a process of its own renews them behind; older ones wait for that process for [`MOST_WAIT`]. Nothing here prints
//! an error: a Tab without an answer completes nothing.

mod cache;
mod known_values;

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory as _, Parser};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use muster_process::{Clock as _, SharedClock, SystemClock};
use muster_protocol::JobId;
use muster_terminal::print;

use self::cache::Cache;
use self::known_values::KnownValue;
pub(crate) use self::known_values::ValueKind;
use crate::cli::Cli;
use crate::cli::user::{Completions, FacilitatorOptions};
use crate::facilitator_access;
use crate::failure::{Failure, Result};

/// The variable by which a shell's script asks this program to complete.
const VARIABLE: &str = "MUSTER_COMPLETE";
/// Values of this age at most are shown at once.
const SHOWN: Duration = Duration::from_secs(60);
/// Values of this age at most are not renewed.
const NEW: Duration = Duration::from_secs(5);
/// Ids that are offered for an empty word, at most.
const MOST_IDS: usize = 10;
/// The wait for values that are older, at most.
const MOST_WAIT: Duration = Duration::from_millis(200);

/// The step of a Tab, by the age of the values that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Show,
    ShowAndRenew,
    AwaitRenewal,
}

/// The facilitator and the identity alone, as the options of every user's command have them.
#[derive(Debug, Parser)]
#[command(ignore_errors = true)]
struct AccessAlone {
    #[command(flatten)]
    access: FacilitatorOptions,
}

/// Answers a shell that asks for completions, and ends the process then. Returns whether there is nothing to say to it.
pub(crate) fn answer_shell() -> bool {
    if std::env::var_os(VARIABLE).is_some() {
        let words = words_of_shell().map(|word| word.to_string_lossy().into_owned());
        if is_behind_break(&words.collect::<Vec<_>>(), index_of_word()) {
            return true;
        }
    }
    CompleteEnv::with_factory(|| with_candidates(Cli::command()))
        .var(VARIABLE)
        .complete();
    false
}

/// The words of the command line that the shell completes.
fn words_of_shell() -> impl Iterator<Item = OsString> {
    std::env::args_os().skip_while(|word| word != "--").skip(1)
}

/// The index of the word that the shell completes.
fn index_of_word() -> Option<usize> {
    std::env::var("_CLAP_COMPLETE_INDEX").ok()?.parse().ok()
}

/// Whether bash cut the word out of a longer one, behind its `=` or `:`. It is a file for most options, and bash
/// completes files by itself.
fn is_behind_break(words: &[String], index: Option<usize>) -> bool {
    let Some(index) = index else {
        return false;
    };
    let is_break = |at: usize| words.get(at).is_some_and(|word| word == "=" || word == ":");
    is_break(index) || index.checked_sub(1).is_some_and(is_break)
}

/// Runs `muster completions`.
pub(crate) async fn run(args: Completions, clock: SharedClock) -> Result<ExitCode> {
    if let Some(kind) = args.renew {
        renew(kind, clock).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(shell) = args.shell else {
        return Err(Failure::usage("name a shell: muster completions bash"));
    };
    let mut script = Vec::new();
    if args.fixed {
        clap_complete::generate(shell, &mut Cli::command(), "muster", &mut script);
    } else {
        let program = std::env::args_os().next().unwrap_or_else(|| "muster".into());
        let shells = Shells::builtins();
        let shell = shells
            .completer(&shell.to_string())
            .ok_or_else(|| Failure::usage(format_args!("no script for {shell}: give --static")))?;
        shell.write_registration(
            VARIABLE,
            "muster",
            "muster",
            &from_any_folder(program),
            &mut script,
        )?;
    }
    print::raw(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

/// The program as a shell finds it in any folder: a path becomes absolute, a bare name stays.
fn from_any_folder(program: OsString) -> String {
    let path = Path::new(&program);
    let absolute = (path.components().count() > 1)
        .then(|| std::path::absolute(path).ok())
        .flatten();
    absolute
        .map_or(program, Into::into)
        .to_string_lossy()
        .into_owned()
}

/// The command with the facilitator's values at each argument that takes one.
fn with_candidates(command: Command) -> Command {
    command
        .mut_args(|arg| match kind_of(&arg) {
            Some(kind) => arg.add(ArgValueCandidates::new(move || candidates(kind))),
            None => arg,
        })
        .mut_subcommands(with_candidates)
}

/// The kind of values that an argument takes, by the name that its help gives them.
fn kind_of(arg: &Arg) -> Option<ValueKind> {
    match arg.get_value_names()? {
        [name] => ValueKind::of_value_name(name),
        _ => None,
    }
}

/// The values of a kind, without any error.
fn candidates(kind: ValueKind) -> Vec<CompletionCandidate> {
    let mut values = kept_values(kind, access_of(words_of_shell())).unwrap_or_default();
    let word = index_of_word().and_then(|index| words_of_shell().nth(index));
    if word.is_none_or(|word| word.is_empty()) {
        leave_out_older_ids(&mut values);
    }
    values.into_iter().map(candidate).collect()
}

/// Leaves out the ids beyond the newest ones: nobody reads a hundred before the first letter is typed.
fn leave_out_older_ids(values: &mut Vec<KnownValue>) {
    let mut ids = 0;
    values.retain(|known| {
        let is_id = known.value.parse::<JobId>().is_ok();
        ids += usize::from(is_id);
        !is_id || ids <= MOST_IDS
    });
}

fn candidate(known: KnownValue) -> CompletionCandidate {
    CompletionCandidate::new(known.value).help(Some(known.about.into()))
}

/// The facilitator and the identity that the words of a command line name, besides those of the environment.
fn access_of(words: impl Iterator<Item = OsString>) -> Option<FacilitatorOptions> {
    let mut named = vec![OsString::from("muster")];
    let (known, mut words) = (AccessAlone::command(), words);
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "--" {
            break;
        }
        let option = text.split('=').next().unwrap_or_default();
        let mut options = known.get_arguments().filter_map(Arg::get_long);
        if !options.any(|name| option.strip_prefix("--") == Some(name)) {
            continue;
        }
        let joined = text.contains('=');
        named.push(word);
        if !joined {
            named.extend(words.next());
        }
    }
    AccessAlone::try_parse_from(named)
        .ok()
        .map(|parsed| parsed.access)
}

/// The values that are kept, renewed before or behind.
fn kept_values(kind: ValueKind, options: Option<FacilitatorOptions>) -> Option<Vec<KnownValue>> {
    let options = options?;
    let access = facilitator_access::resolve(&options).ok()?;
    let cache = Cache::of(&access, kind)?;
    let kept = cache.read();
    let now = SystemClock::default().now();
    // Values of the future are as good as none: the clock was set back.
    let age = kept
        .as_ref()
        .filter(|kept| kept.at <= now)
        .map(|kept| now.since(kept.at));
    match step(age) {
        Step::Show => kept.map(|kept| kept.values),
        Step::ShowAndRenew => {
            start_renewal(kind, &options)?;
            kept.map(|kept| kept.values)
        }
        Step::AwaitRenewal => {
            let ended = start_renewal(kind, &options)?;
            // Values that are too old are better than none.
            let _ = ended.recv_timeout(MOST_WAIT);
            cache.read().or(kept).map(|kept| kept.values)
        }
    }
}

/// The step for values of this age; there is no age where none are kept.
fn step(age: Option<Duration>) -> Step {
    match age {
        Some(age) if age <= NEW => Step::Show,
        Some(age) if age <= SHOWN => Step::ShowAndRenew,
        Some(_) | None => Step::AwaitRenewal,
    }
}

/// Starts the process that renews the values; the receiver hears of its end. The process outlives this one.
fn start_renewal(kind: ValueKind, options: &FacilitatorOptions) -> Option<mpsc::Receiver<()>> {
    let mut renewal = std::process::Command::new(std::env::current_exe().ok()?);
    renewal
        .args(["completions", "--renew", kind.word()])
        .env("MUSTER_DIR", &options.dir)
        .env("MUSTER_HOTKEY", &options.wallet.hotkey)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0); // Ctrl-C at the prompt is not meant for it
    let facilitator = options.facilitator.as_ref().map(|url| url.as_str().into());
    let key = options.api_key.as_ref().map(OsString::from);
    let wallet = options.wallet.wallet.as_ref().map(OsString::from);
    let wallets = options.wallet.wallets.as_ref().map(OsString::from);
    let named: [(_, Option<OsString>); 4] = [
        ("MUSTER_FACILITATOR", facilitator),
        ("MUSTER_API_KEY", key),
        ("MUSTER_WALLET", wallet),
        ("MUSTER_WALLETS", wallets),
    ];
    renewal.envs(named.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let mut ends = renewal.spawn().ok()?.stdout?;
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut nothing = Vec::new();
        let _ = ends.read_to_end(&mut nothing);
        let _ = tell.send(());
    });
    Some(told)
}

/// Asks the facilitator for the values of a kind, and keeps them.
async fn renew(kind: ValueKind, clock: SharedClock) -> Result<()> {
    let Some(options) = access_of(std::iter::empty()) else {
        return Ok(());
    };
    let access = facilitator_access::resolve(&options)?;
    let client = access.connect(clock.clone()).await?;
    let values = known_values::ask(&client, kind).await?;
    if let Some(cache) = Cache::of(&access, kind) {
        cache.write(clock.now(), values)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_bash_cut_out_of_a_longer_one_is_left_to_bash() {
        let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
        for (line, index, expected) in [
            ("muster job run -i x =", 5, true),
            ("muster job run -i x = d", 6, true),
            ("muster job run --resume-from train :", 5, true),
            ("muster job show tra", 3, false),
            ("muster", 0, false),
        ] {
            assert_eq!(is_behind_break(&words(line), Some(index)), expected, "{line}");
        }
        assert!(!is_behind_break(&words("muster ="), None));
    }

    #[test]
    fn an_empty_word_is_answered_with_names_and_the_newest_ids() {
        let known = |value: String| KnownValue {
            value,
            about: String::new(),
        };
        let ids = (0..20).map(|number| known(format!("11111111-2222-4333-8444-5555555555{number:02}")));
        let mut values: Vec<_> = [known("@last".to_owned()), known("train".to_owned())]
            .into_iter()
            .chain(ids)
            .collect();
        leave_out_older_ids(&mut values);
        assert_eq!(values.len(), 12);
        assert!(values.last().unwrap().value.ends_with("09"));
    }

    #[test]
    fn values_of_a_minute_are_shown_at_once_and_older_ones_wait_for_news() {
        for (age, expected) in [
            (Some(0), Step::Show),
            (Some(5), Step::Show),
            (Some(6), Step::ShowAndRenew),
            (Some(60), Step::ShowAndRenew),
            (Some(61), Step::AwaitRenewal),
            (None, Step::AwaitRenewal),
        ] {
            assert_eq!(step(age.map(Duration::from_secs)), expected, "{age:?}");
        }
    }

    #[test]
    fn every_argument_with_a_value_of_the_facilitator_completes_it() {
        let mut command = with_candidates(Cli::command());
        command.build();
        for (path, argument) in [
            (&["job", "show"][..], "id"),
            (&["job", "wait"], "id"),
            (&["job", "run"], "again"),
            (&["job", "run"], "class"),
            (&["subnet"], "class"),
            (&["chat"], "model"),
            (&["files", "get"], "id"),
            (&["files", "rm"], "id"),
        ] {
            let found = path
                .iter()
                .fold(&command, |command, name| command.find_subcommand(name).unwrap());
            let argument = found
                .get_arguments()
                .find(|arg| arg.get_id() == argument)
                .unwrap();
            assert!(
                argument.get::<ArgValueCandidates>().is_some(),
                "{path:?} {argument:?}"
            );
        }
        let rm = command
            .find_subcommand("keys")
            .unwrap()
            .find_subcommand("rm")
            .unwrap();
        let key = rm.get_arguments().find(|arg| arg.get_id() == "id").unwrap();
        assert!(
            key.get::<ArgValueCandidates>().is_none(),
            "a key is nobody's to show"
        );
    }

    #[test]
    fn the_words_before_a_tab_name_the_facilitator() {
        let words = "job show --json --facilitator http://a.example --dir=sub --wal";
        let access = access_of(words.split(' ').map(OsString::from)).unwrap();
        assert_eq!(access.facilitator.unwrap().as_str(), "http://a.example");
        assert_eq!(access.dir, Path::new("sub"));
        let of_program = access_of("job run x -- --dir other".split(' ').map(OsString::from)).unwrap();
        assert_ne!(of_program.dir, Path::new("other"));
    }
}
