//! `muster top` in a real terminal of tmux, on a real subnet: it shows what happens, follows the window's size, and
//! leaves the terminal as it was.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests fail as tests do, and a failing test shows its window"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use muster_monitor::sources::{RoleStatus, StatusSource};
use muster_process::clock::{Clock, Sleep};
use muster_process::{SharedClock, SystemClock, Tasks};
use muster_protocol::Timestamp;
use muster_testbed::wait_for;
use muster_tests::{BUSYBOX, Output, RunningSubnet, muster, run};

use super::differential::{IMAGE, load_image};

/// A server of tmux with one window in which a shell waits.
struct TmuxWindow {
    socket: PathBuf,
}

impl TmuxWindow {
    fn open(folder: &Path, width: u16, height: u16) -> Self {
        let window = Self {
            socket: folder.join("tmux.sock"),
        };
        let (width, height) = (width.to_string(), height.to_string());
        let size = ["-x", &width, "-y", &height];
        let shell = [
            "env",
            "-i",
            "PATH=/usr/bin:/bin",
            "TERM=screen-256color",
            "LANG=C.UTF-8",
            "PS1=ready> ",
            "sh",
        ];
        let opened =
            window.tmux(&[&["-f", "/dev/null", "-u", "new-session", "-d"][..], &size, &shell].concat());
        assert_eq!(opened.code, Some(0), "{opened:?}");
        window
    }

    fn tmux(&self, args: &[&str]) -> Output {
        run(Command::new("tmux").arg("-S").arg(&self.socket).args(args)).unwrap()
    }

    /// Types a line into the window.
    fn type_line(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.tmux(&["send-keys", "Enter"]);
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// The window's text.
    fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).stdout
    }

    fn wait_for_text(&self, part: &str) -> String {
        let seen = wait_for(&format!("{part:?} in the window"), || {
            anyhow::Ok(Some(self.text()).filter(|text| text.contains(part)))
        });
        seen.unwrap()
    }
}

impl Drop for TmuxWindow {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the window shows:\n{}", self.text());
        }
        self.tmux(&["kill-server"]);
    }
}

/// Asks the shell whether the terminal is as it was, under a number of its own.
fn is_given_back(window: &TmuxWindow, number: u32) {
    window.type_line(&format!(
        "stty -a | tr ' ;' '\\n\\n' | grep -xE 'icanon|echo|isig' | tr '\\n' ' '; echo mode-{number}-$((1+1))"
    ));
    let text = window.wait_for_text(&format!("mode-{number}-2"));
    let line = text
        .lines()
        .find(|line| line.contains(&format!("mode-{number}-2")))
        .unwrap();
    for mode in ["icanon", "echo", "isig"] {
        assert!(line.contains(mode), "{mode} is off: {line}");
    }
}

/// The bars of tqdm, cargo and pip, one of two lines, and a last line without an end, as these programs draw them.
const BARS: &str = r#"printf "steps:   0%%|     | 0/2\rsteps:  50%%|##   | 1/2\r"; printf "steps: 100%%|#####| 2/2\n";
printf "   Compiling one v0.1.0\n\033[K    Building [===>     ] 1/2\r"; printf "\033[K    Finished both\n";
printf "     ----     1/2 MB\r     -------- "; printf "2/2 MB\n";
printf "upper 1\nlower 1\n"; printf "\033[2A\033[Kupper 2\n\033[Klower 2\n";
printf "a line "; printf "is whole\nno end"; exit 4"#;
/// The lines that the bars leave on a screen.
const DRAWN: [&str; 8] = [
    "steps: 100%|#####| 2/2",
    "   Compiling one v0.1.0",
    "    Finished both",
    "     -------- 2/2 MB",
    "upper 2",
    "lower 2",
    "a line is whole",
    "no end",
];

/// A job leaves the screen as its program does without a job. The last status comes while the last line is open.
pub(crate) fn a_jobs_lines_are_drawn_as_its_program_draws_them(subnet: &RunningSubnet) {
    load_image();
    let script = subnet.folder().join("bars.sh");
    std::fs::write(&script, BARS).unwrap();
    let window = TmuxWindow::open(subnet.folder(), 120, 50);
    window.type_line(&format!("sh {}; echo; echo alone-$?", script.display()));
    let alone = window.wait_for_text("alone-0");
    let drawn = |text: &str| {
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.windows(DRAWN.len()).any(|lines| lines == DRAWN)
    };
    assert!(drawn(&alone), "{alone}");
    window.type_line("clear");
    window.type_line(&format!(
        "{} job run --dir {} {IMAGE} -- {BUSYBOX} sh -c \"$(cat {})\"; echo over-$?",
        muster().unwrap().display(),
        subnet.folder().display(),
        script.display()
    ));
    let text = window.wait_for_text("over-4");
    assert!(drawn(&text), "{text}");
}

pub(crate) fn top_shows_jobs_validator_and_miner_and_leaves_the_terminal_as_it_was(subnet: &RunningSubnet) {
    let done = subnet
        .muster(&["job", "run", subnet.demo_image(), "--", "probe", "exit", "3"])
        .unwrap();
    assert_eq!(done.code, Some(3), "{done:?}");
    let window = TmuxWindow::open(subnet.folder(), 80, 24);
    let top = format!("{} top", muster().unwrap().display());
    let folder = subnet.folder().display();

    // A user's jobs, live: a second one appears by itself.
    window.type_line(&format!("{top} --dir {folder} --every 1; echo left-$((6*7))"));
    let text = window.wait_for_text("failed");
    assert!(text.contains("your jobs") && text.contains("0 open"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let started = subnet
        .muster(&[
            "job",
            "run",
            subnet.demo_image(),
            "--detach",
            "--",
            "probe",
            "exit",
            "0",
        ])
        .unwrap();
    let id: String = started.stdout.trim().chars().take(8).collect();
    window.wait_for_text(&id);
    window.wait_for_text("done");
    // The window grows and becomes tiny.
    window.tmux(&["resize-window", "-x", "120", "-y", "40"]);
    wait_for("the last line of the larger window", || {
        let text = window.text();
        let last = text.lines().nth(39).unwrap_or_default().to_owned();
        anyhow::Ok(last.contains("q quit").then_some(()))
    })
    .unwrap();
    window.tmux(&["resize-window", "-x", "20", "-y", "5"]);
    window.wait_for_text("too small");
    window.tmux(&["resize-window", "-x", "100", "-y", "30"]);
    window.press("Tab");
    window.wait_for_text("always_on.test");
    window.press("q");
    let text = window.wait_for_text("left-42");
    assert!(
        !text.contains("your jobs"),
        "the screen from before is back: {text}"
    );
    is_given_back(&window, 1);

    // The validator, ended by a signal from elsewhere.
    window.type_line("clear");
    window.type_line(&format!(
        "{top} validator --dir {folder} --every 1; echo ended-$((6*8))"
    ));
    let text = window.wait_for_text("facilitator ok");
    assert!(text.contains("validator at"), "{text}");
    window.press("4");
    window.wait_for_text("cycle");
    let panes = window.tmux(&["list-panes", "-F", "#{pane_pid}"]);
    let found = run(Command::new("ps").args(["--ppid", panes.stdout.trim(), "-o", "pid=,args="])).unwrap();
    let line = found
        .stdout
        .lines()
        .find(|line| line.contains(" top validator"))
        .unwrap()
        .to_owned();
    let pid = line.split_whitespace().next().unwrap().to_owned();
    run(Command::new("kill").args(["-TERM", &pid])).unwrap();
    window.wait_for_text("ended-48");
    is_given_back(&window, 2);

    // The miner, with the operator's token of the subnet; Ctrl-C is a key there.
    window.type_line("clear");
    window.type_line(&format!(
        "{top} miner --dir {folder} --every 1; echo gone-$((6*9))"
    ));
    window.wait_for_text("1 validators");
    window.press("5");
    window.wait_for_text("executor time");
    window.press("C-c");
    window.wait_for_text("gone-54");
    is_given_back(&window, 3);
}

/// A clock that fails once the screen has been painted a few times.
#[derive(Debug)]
struct FailingClock {
    clock: SystemClock,
    asked: AtomicUsize,
}

impl Clock for FailingClock {
    fn now(&self) -> Timestamp {
        assert!(self.asked.fetch_add(1, Ordering::Relaxed) < 30, "the clock fails");
        self.clock.now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> Sleep {
        self.clock.sleep_until(deadline)
    }
}

#[test]
#[ignore = "it is the program in the terminal of `a_panic_leaves_the_terminal_as_it_was`"]
fn a_screen_that_panics() {
    let clock: SharedClock = Arc::new(FailingClock {
        clock: SystemClock::new(),
        asked: AtomicUsize::new(0),
    });
    muster_process::tls::install_provider();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let source = StatusSource::Validator(RoleStatus::new("127.0.0.1:1".parse().unwrap(), None).unwrap());
    let every = Duration::from_secs(1);
    let ended = runtime.block_on(muster_monitor::run::run(source, every, &Tasks::new(), clock));
    assert!(ended.is_err(), "a panic ends the screen: {ended:?}");
}

#[test]
fn a_panic_leaves_the_terminal_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let window = TmuxWindow::open(folder.path(), 100, 30);
    let program = std::env::current_exe().unwrap();
    window.type_line(&format!(
        "{} --ignored --exact --nocapture top::a_screen_that_panics; echo over-$((6*7))",
        program.display()
    ));
    // The screen was there, or nothing would have to be given back.
    window.wait_for_text("q quit");
    let text = window.wait_for_text("over-42");
    assert!(text.contains("the clock fails"), "the panic is told: {text}");
    assert!(!text.contains("q quit"), "the screen from before is back: {text}");
    is_given_back(&window, 1);
}

#[test]
fn top_without_a_terminal_says_so() {
    let said =
        run(Command::new(muster().unwrap()).args(["top", "validator", "--at", "127.0.0.1:1"])).unwrap();
    assert_ne!(said.code, Some(0));
    assert!(said.stderr.contains("needs a terminal"), "{said:?}");
}
