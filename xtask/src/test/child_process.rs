//! Children: run one in the foreground, read what it prints, stop it when the user has had enough.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::signal::unix::{SignalKind, signal};

use super::{cgroup::Cgroup, console::Console, report::Outcome};

/// How long a stream may stay open after the end of the process that was listened to.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Remembers ctrl-c and SIGTERM and passes them on, so that the services of a run are stopped and removed.
#[derive(Clone, Default)]
pub(super) struct Interrupt(Arc<RunningProcesses>);

#[derive(Default)]
struct RunningProcesses {
    requested: AtomicBool,
    /// The process groups of the steps that run.
    groups: Mutex<Vec<Pid>>,
}

impl Interrupt {
    /// Listens from now on. A handler, not a blocked mask: children would inherit the mask.
    pub(super) fn install() -> anyhow::Result<Self> {
        let interrupt = Self(Arc::default());
        let listener = interrupt.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .context("listen for signals")?;
        let (mut int, mut term) = {
            let _entered = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        thread::spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::select! {
                        _ = int.recv() => listener.deliver(),
                        _ = term.recv() => listener.deliver(),
                    }
                }
            });
        });
        Ok(interrupt)
    }

    pub(super) fn requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }

    /// Asks the running steps to stop; the second request kills them.
    fn deliver(&self) {
        let again = self.0.requested.swap(true, Ordering::SeqCst);
        for group in self.groups().iter() {
            // It may just have ended by itself.
            let _ = killpg(*group, if again { Signal::SIGKILL } else { Signal::SIGINT });
        }
    }

    /// Runs a command in a process group of its own, and in a control group, until it ends. `hear` takes its streams.
    fn run<T>(
        &self,
        control: Option<&Cgroup>,
        command: &mut Command,
        hear: impl FnOnce(&mut Child) -> T,
    ) -> anyhow::Result<(ExitStatus, T)> {
        let name = name_of(command);
        let mut child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        if let Some(control) = control {
            // A command that has ended already used no time to speak of.
            let _ = control.adopt(child.id());
        }
        let group = Pid::from_raw(i32::try_from(child.id()).context("read the child's process id")?);
        self.groups().push(group);
        if self.requested() {
            // The signal came between the caller's last look and this child.
            let _ = killpg(group, Signal::SIGINT);
        }
        let heard = hear(&mut child);
        let status = child.wait().with_context(|| format!("wait for {name}"));
        self.groups().retain(|other| *other != group);
        Ok((status?, heard))
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.0.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a check: what it prints goes to the console, its exit status is its outcome.
    pub(super) fn check(
        &self,
        console: &Console,
        control: Option<&Cgroup>,
        command: &mut Command,
    ) -> anyhow::Result<Outcome> {
        let status = match console {
            // The command sees the terminal itself and may draw on it.
            Console::Screen => self.run(control, command, |_| ())?.0,
            Console::Kept(_) => self.listen(console, control, command)?.0,
        };
        if status.success() {
            return Ok(Outcome::Passed);
        }
        Ok(Outcome::Failed(format!(
            "{} ended with {status}",
            name_of(command)
        )))
    }

    /// Runs a command whose output goes to the console and is also returned, both streams together.
    pub(super) fn listen(
        &self,
        console: &Console,
        control: Option<&Cgroup>,
        command: &mut Command,
    ) -> anyhow::Result<(ExitStatus, String)> {
        let record = Arc::new(Mutex::new(String::new()));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (status, repeaters) = self.run(control, command, |child| {
            let out = child
                .stdout
                .take()
                .map(|stream| repeat(stream, record.clone(), console.clone()));
            let err = child
                .stderr
                .take()
                .map(|stream| repeat(stream, record.clone(), console.clone()));
            [out, err]
        })?;
        // A process that the command left behind may hold the streams open for ever; it is not waited for.
        within(LAST_WORDS, || {
            repeaters.iter().flatten().all(JoinHandle::is_finished)
        });
        let text = std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((status, text))
    }
}

impl Interrupt {
    /// Runs a command whose stdout is for us, line by line, and whose stderr is for the console.
    pub(super) fn read_stdout(
        &self,
        console: &Console,
        control: Option<&Cgroup>,
        command: &mut Command,
        mut hear: impl FnMut(&str),
    ) -> anyhow::Result<ExitStatus> {
        command.stdout(Stdio::piped());
        if matches!(console, Console::Kept(_)) {
            command.stderr(Stdio::piped());
        }
        let (status, ()) = self.run(control, command, |child| {
            let said = child
                .stderr
                .take()
                .map(|stream| repeat(stream, Arc::default(), console.clone()));
            if let Some(stream) = child.stdout.take() {
                BufReader::new(stream)
                    .lines()
                    .map_while(Result::ok)
                    .for_each(|line| hear(&line));
            }
            if let Some(said) = said {
                within(LAST_WORDS, || said.is_finished());
            }
        })?;
        Ok(status)
    }
}

/// Copies a stream line by line to the console and to the record.
fn repeat(stream: impl Read + Send + 'static, heard: Arc<Mutex<String>>, console: Console) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut lines = BufReader::new(stream);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches('\n');
            console.print(format_args!("{text}"));
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.push_str(text);
            heard.push('\n');
            line.clear();
        }
    })
}

/// The program and its first argument: `cargo clippy`.
pub(super) fn name_of(command: &Command) -> String {
    let program = command.get_program();
    let program = std::path::Path::new(program)
        .file_name()
        .unwrap_or(program)
        .to_string_lossy();
    match command.get_args().next() {
        Some(first) => format!("{program} {}", first.to_string_lossy()),
        None => program.into_owned(),
    }
}

/// Runs a command quietly; its output is in the error if it fails.
pub(super) fn quietly(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", name_of(command)))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::bail!(
        "{} ended with {}:\n{}",
        name_of(command),
        output.status,
        last_lines(&format!("{stdout}{stderr}"), 15)
    )
}

/// The end of a long text, where the reason usually stands.
pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines
        .into_iter()
        .rev()
        .take(count)
        .rev()
        .collect::<Vec<_>>()
        .join("\n")
}

/// Whether a program is on the path.
pub(super) fn on_path(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// Asks again and again until the answer is yes, or the deadline has passed (then `false`).
pub(super) fn within(deadline: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let watch = Stopwatch::start();
    loop {
        if holds() {
            return true;
        }
        if watch.elapsed() >= deadline {
            return false;
        }
        pause();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "between two looks at a process of somebody else's, on a thread of ours"
)]
fn pause() {
    thread::sleep(Duration::from_millis(50));
}

/// The time a step takes on the user's wall.
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "real time is what is measured, and xtask uses none of our crates"
    )]
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn idle() -> Interrupt {
        Interrupt::default()
    }

    #[test]
    fn a_check_passes_by_its_exit_status() {
        assert!(matches!(
            idle()
                .check(&Console::Screen, None, &mut shell("exit 0"))
                .unwrap(),
            Outcome::Passed
        ));
        let Outcome::Failed(why) = idle()
            .check(&Console::Screen, None, &mut shell("exit 3"))
            .unwrap()
        else {
            panic!("it failed")
        };
        assert_eq!(why, "sh -c ended with exit status: 3");
    }

    #[test]
    fn listening_gathers_both_streams() {
        let (status, text) = idle()
            .listen(
                &Console::Screen,
                None,
                &mut shell("echo out; echo err >&2; printf 'no newline'"),
            )
            .unwrap();
        assert!(status.success());
        for part in ["out\n", "err\n", "no newline\n"] {
            assert!(text.contains(part), "{text:?}");
        }
    }

    #[test]
    fn listening_does_not_wait_for_a_process_left_behind() {
        let (status, text) = idle()
            .listen(
                &Console::Screen,
                None,
                &mut shell("echo said; tail -f /dev/null & echo $!"),
            )
            .unwrap();
        assert!(status.success());
        let (said, left) = text.trim_end().split_once('\n').unwrap();
        assert_eq!(said, "said");
        let left = Pid::from_raw(left.parse().unwrap());
        nix::sys::signal::kill(left, Signal::SIGKILL).unwrap();
    }

    #[test]
    fn an_interrupt_stops_the_foreground_and_is_remembered() {
        let interrupt = idle();
        let other = interrupt.clone();
        let delivered = thread::spawn(move || {
            let busy = || !other.groups().is_empty();
            assert!(within(crate::test_patience(), busy));
            other.deliver();
        });
        let outcome = interrupt
            .check(&Console::Screen, None, &mut shell("exec tail -f /dev/null"))
            .unwrap();
        delivered.join().unwrap();
        assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
        assert!(interrupt.requested());
    }

    #[test]
    fn quiet_failures_carry_what_was_said() {
        let error = quietly(&mut shell("echo reason >&2; exit 1"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("exit status: 1") && error.contains("reason"),
            "{error}"
        );
        assert_eq!(quietly(&mut shell("echo fine")).unwrap(), "fine\n");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = idle()
            .check(&Console::Screen, None, &mut Command::new("no-such-program-here"))
            .unwrap_err();
        assert!(
            format!("{error:#}").contains("start no-such-program-here"),
            "{error:#}"
        );
        assert!(!on_path("no-such-program-here"));
        assert!(on_path("sh"));
    }

    #[test]
    fn the_last_lines_are_the_last() {
        assert_eq!(last_lines("a\nb\nc", 2), "b\nc");
        assert_eq!(last_lines("a", 5), "a");
    }
}
