//! Child processes: started, their output kept, restarted when they die, stopped in order.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use muster_process::clock::SharedClock;
use muster_process::{Backoff, Tasks};
use muster_protocol::ErrorCode;
use muster_terminal::print;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use muster_terminal::failure::Failure;

use crate::subnet_folder::Layout;

/// A process that lived shorter than this died of its start.
const QUICK: Duration = Duration::from_secs(10);
/// This many quick deaths in a row are no accident.
const QUICK_DEATHS: u32 = 5;
/// How long a process may take to stop before it is killed.
const GRACE: Duration = Duration::from_secs(15);
/// Between two looks at something that is about to appear.
const LOOK: Duration = Duration::from_millis(20);

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// The role's name: the prefix of its lines.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<PathBuf>,
    /// Whether it can be started again. The local chain cannot: its blocks are gone with it.
    pub restart: bool,
    /// Whether it starts executors, which outlive it: they wait for the next miner unless they are stopped, too.
    pub has_executors: bool,
}

/// Runs programs until it is asked to stop.
pub struct Supervisor {
    layout: Layout,
    tasks: Tasks,
    clock: SharedClock,
    /// Whether lines also go to the terminal.
    echo: bool,
    running: Vec<(CancellationToken, tokio::sync::oneshot::Receiver<()>)>,
    /// Cancelled once nothing is given time to stop any more.
    kill: CancellationToken,
    fatal: (mpsc::UnboundedSender<Failure>, mpsc::UnboundedReceiver<Failure>),
}

impl Supervisor {
    /// Nothing runs yet.
    pub fn new(layout: Layout, tasks: Tasks, clock: SharedClock, echo: bool) -> Self {
        Self {
            layout,
            tasks,
            clock,
            echo,
            running: Vec::new(),
            kill: CancellationToken::new(),
            fatal: mpsc::unbounded_channel(),
        }
    }

    /// Starts a program and keeps it running.
    pub fn start(&mut self, program: Program) {
        let stop = CancellationToken::new();
        let (done, ended) = tokio::sync::oneshot::channel();
        let keeper = Keeper {
            program,
            layout: self.layout.clone(),
            tasks: self.tasks.clone(),
            clock: self.clock.clone(),
            echo: self.echo,
            stop: stop.clone(),
            kill: self.kill.clone(),
        };
        let fatal = self.fatal.0.clone();
        self.tasks.spawn("keep a process running", async move {
            if let Err(failure) = keeper.keep().await {
                // Nobody listens once the supervisor stops; then it does not matter either.
                let _ = fatal.send(failure);
            }
            let _ = done.send(());
        });
        self.running.push((stop, ended));
    }

    /// Waits until `there` finds what it looks for, a program gives up, or the time is over.
    pub async fn wait_for<T>(
        &mut self,
        what: &str,
        patience: Duration,
        mut there: impl FnMut() -> Option<T>,
    ) -> Result<T, Failure> {
        let mut found = None;
        self.wait_until(what, patience, || {
            found = there();
            std::future::ready(found.is_some())
        })
        .await?;
        found.ok_or_else(|| Failure::from(anyhow::anyhow!("{what} was there and is gone")))
    }

    /// Waits until `done` returns true, a program gives up, or the time is over.
    pub async fn wait_until<F: Future<Output = bool>>(
        &mut self,
        what: &str,
        patience: Duration,
        mut done: impl FnMut() -> F,
    ) -> Result<(), Failure> {
        let deadline = self.clock.now().plus(patience);
        while !done().await {
            if let Ok(failure) = self.fatal.1.try_recv() {
                return Err(failure);
            }
            if self.clock.now() >= deadline {
                let error = anyhow::anyhow!("{what} did not appear within {} s", patience.as_secs());
                return Err(Failure::new(ErrorCode::RoleDied, error));
            }
            self.clock.sleep(LOOK).await;
        }
        Ok(())
    }

    /// Ends when a program gives up.
    pub async fn failure(&mut self) -> Failure {
        match self.fatal.1.recv().await {
            Some(failure) => failure,
            // We hold a sender ourselves, so the channel never closes.
            None => std::future::pending().await,
        }
    }

    /// Stops everything, last started first, and waits for each. Once `hurry` ends, the processes that still run are
    /// killed.
    pub async fn stop(&mut self, hurry: impl Future<Output = ()>) {
        let kill = self.kill.clone();
        let stopping = async {
            while let Some((stop, ended)) = self.running.pop() {
                stop.cancel();
                let _ = ended.await;
            }
        };
        tokio::pin!(stopping);
        tokio::select! {
            () = &mut stopping => return,
            () = hurry => kill.cancel(),
        }
        stopping.await;
    }
}

/// Keeps one program running.
struct Keeper {
    program: Program,
    layout: Layout,
    tasks: Tasks,
    clock: SharedClock,
    echo: bool,
    stop: CancellationToken,
    kill: CancellationToken,
}

impl Keeper {
    async fn keep(&self) -> Result<(), Failure> {
        let name = &self.program.name;
        let mut quick_deaths = 0;
        loop {
            let begun = self.clock.now();
            let mut child = self.spawn()?;
            // Held here, because waiting for a child closes its standard input.
            let _lifeline = child.stdin.take();
            let status = tokio::select! {
                status = child.wait() => status.context("cannot wait for a child process")?,
                () = self.stop.cancelled() => return self.end(child).await.map_err(Into::into),
            };
            let lived = self.clock.now().since(begun);
            quick_deaths = if lived < QUICK { quick_deaths + 1 } else { 0 };
            if !self.program.restart || quick_deaths >= QUICK_DEATHS {
                let log = self.layout.log(name);
                let error = anyhow::anyhow!("{name} stopped ({status}); its log is {}", log.display());
                return Err(Failure::new(ErrorCode::RoleDied, error));
            }
            let delay = Backoff::PEERS.delay(quick_deaths.saturating_sub(1), u32::MAX);
            print::problem(format_args!(
                "[{name}] stopped ({status}), starts again in {:.1} s",
                delay.as_secs_f64()
            ));
            tokio::select! {
                () = self.clock.sleep(delay) => {}
                () = self.stop.cancelled() => return Ok(()),
            }
        }
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let name = &self.program.name;
        let (program, args) = self
            .program
            .command
            .split_first()
            .context("a program without a name")?;
        let mut command = Command::new(program);
        // Standard input is the lifeline: it ends when we end, however we end.
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        // A Ctrl-C at the terminal is for us; we stop the others in order.
        command.process_group(0);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        if let Some(pid) = child.id() {
            std::fs::write(self.layout.pid(name), pid.to_string())?;
        }
        if let Some(stdout) = child.stdout.take() {
            self.drain(stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            self.drain(stderr);
        }
        Ok(child)
    }

    /// Copies what a program prints into its log, and to the terminal where that is wanted.
    fn drain(&self, output: impl AsyncRead + Unpin + Send + 'static) {
        let (name, echo) = (self.program.name.clone(), self.echo);
        let log = self.layout.log(&name);
        self.tasks.spawn("keep a process's output", async move {
            let file = tokio::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&log)
                .await;
            let mut file = file
                .inspect_err(|error| print::problem(format_args!("{}: {error}", log.display())))
                .ok();
            let mut lines = BufReader::new(output).split(b'\n');
            while let Ok(Some(line)) = lines.next_segment().await {
                let text = String::from_utf8_lossy(&line);
                if let Some(file) = &mut file {
                    // A log that cannot be written must not stop the role it is about.
                    let _ = file.write_all(format!("{text}\n").as_bytes()).await;
                }
                if echo {
                    // Roles begin their lines with their own name, the second miner with `miner` too.
                    let text = text.strip_prefix(role_of(&name)).map_or(&*text, str::trim_start);
                    print::line(format_args!("[{name:<11}] {text}"));
                }
            }
        });
    }

    /// Asks the executors to stop, which remove their containers first. No miner comes back for their jobs.
    fn end_executors(&self, executors: &[Pid]) {
        let ends = match executors.len() {
            0 => return,
            1 => "an executor ends, and any job on it,".to_owned(),
            count => format!("{count} executors end, and any jobs on them,"),
        };
        print::problem(format_args!(
            "[{}] {ends} with the subnet; nobody is at fault",
            self.program.name
        ));
        for executor in executors {
            // Each leads a group of its own; it may be gone already.
            let _ = killpg(*executor, Signal::SIGTERM);
        }
    }

    /// Asks it to stop, and makes it.
    async fn end(&self, mut child: Child) -> anyhow::Result<()> {
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let executors = match self.program.has_executors {
                true => children_of(pid),
                false => Vec::new(),
            };
            // It may be gone already.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            self.end_executors(&executors);
        }
        tokio::select! {
            status = child.wait() => { status?; }
            () = self.clock.sleep(GRACE) => child.kill().await?,
            () = self.kill.cancelled() => child.kill().await?,
        }
        for file in [
            self.layout.pid(&self.program.name),
            self.layout.ready(&self.program.name),
        ] {
            // The chain has no ready file.
            let _ = std::fs::remove_file(file);
        }
        Ok(())
    }
}

/// The processes that this one has started and that still run.
fn children_of(parent: i32) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_child = |stat: &str| {
        // The name of a program may contain anything, so its end is the last bracket. The state and the parent follow.
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
        let mut fields = fields.unwrap_or_default().split_whitespace();
        let runs = fields.next().is_some_and(|state| state != "Z");
        runs && fields.next().and_then(|field| field.parse().ok()) == Some(parent)
    };
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            is_child(&stat).then_some(Pid::from_raw(pid))
        })
        .collect()
}

/// The role of a process: `miner` of `miner-2`.
fn role_of(name: &str) -> &str {
    name.split('-').next().unwrap_or(name)
}
