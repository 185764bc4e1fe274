//! Two lanes of steps that run at once, each in its order; a step waits for its needs in either lane.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use super::{
    Report, Run, SharedState,
    cgroup::{Cgroup, RemovedGroup},
    child_process::Stopwatch,
    console::Console,
    report::{Cost, Outcome},
    steps::{Lane, Step},
};

/// The knowledge that both lanes share.
struct Progress<'run> {
    shared: &'run SharedState,
    state: Mutex<LaneState>,
    changed: Condvar,
}

#[derive(Default)]
struct LaneState {
    report: Report,
    ended: Vec<&'static str>,
    /// The words of the side lane that nobody has shown.
    unshown: String,
}

/// Runs the steps, those of the main lane on this thread.
pub(super) fn run(shared: &SharedState, steps: &[&Step]) -> Report {
    let watch = Stopwatch::start();
    let progress = Progress {
        shared,
        state: Mutex::default(),
        changed: Condvar::new(),
    };
    let of = |lane| steps.iter().copied().filter(move |step| step.lane == lane);
    let needs = |step: &Step| -> Vec<&'static str> {
        let chosen = |need: &&str| steps.iter().any(|step| step.name == *need);
        step.needs.iter().copied().filter(chosen).collect()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for step in of(Lane::Side) {
                progress.run_step(step, &needs(step), &Console::kept());
            }
        });
        for step in of(Lane::Main) {
            progress.run_step(step, &needs(step), &Console::Screen);
        }
        let last: Vec<_> = of(Lane::Side).map(|step| step.name).collect();
        let ahead = progress.not_ended(&last);
        if !ahead.is_empty() && !shared.interrupt.requested() {
            println!("\nthe main lane has ended; still to come: {}", ahead.join(", "));
        }
        progress.wait_for(&last, &Console::Screen);
    });
    let mut report = progress.into_report();
    if shared.interrupt.requested() {
        let stopped = Outcome::Failed("stopped by a signal".to_owned());
        report.add(&Console::Screen, "interrupted", Cost::default(), stopped);
    }
    let order: Vec<&str> = steps.iter().map(|step| step.name).collect();
    report.finish(&order, shared.cost_so_far(watch.elapsed()));
    report
}

impl Progress<'_> {
    /// Runs a step after its needs; prints nothing and runs nothing once the user has interrupted.
    fn run_step(&self, step: &Step, needs: &[&'static str], console: &Console) {
        self.wait_for(needs, console);
        if !self.shared.interrupt.requested() {
            console.print(format_args!("\n=== {}: {}", step.name, step.about));
            let watch = Stopwatch::start();
            let group = self.shared.group_of(step.name).map(RemovedGroup);
            let run = Run::new(self.shared, console.clone(), group.as_ref().map(|group| &group.0));
            // The services work for the steps that need them.
            let uses_services = step.needs.contains(&"services");
            let before = self.shared.used_by_services();
            let outcome = outcome_of(|| (step.run)(&run));
            let beside = self.shared.used_by_services().saturating_sub(before);
            let used = group.as_ref().and_then(|group| Cgroup::used(&group.0));
            let cost = Cost {
                wall: watch.elapsed(),
                processor: used.map(|used| if uses_services { used + beside } else { used }),
                compiled: run.compiled(),
                ..Cost::default()
            };
            self.state().report.add(console, step.name, cost, outcome);
        }
        let mut state = self.state();
        state.ended.push(step.name);
        state.unshown.push_str(&console.take());
        if let Console::Screen = console {
            show(&mut state);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until all of them have ended. The main lane shows meanwhile what the side lane has printed.
    fn wait_for(&self, needs: &[&'static str], console: &Console) {
        let mut state = self.state();
        loop {
            if let Console::Screen = console {
                show(&mut state);
            }
            if needs.iter().all(|need| state.ended.contains(need)) {
                return;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Those of the steps that have not ended.
    fn not_ended(&self, steps: &[&'static str]) -> Vec<&'static str> {
        let state = self.state();
        let mut open = steps.to_vec();
        open.retain(|step| !state.ended.contains(step));
        open
    }

    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn into_report(self) -> Report {
        self.state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .report
    }
}

/// A step's outcome. A step that panics has failed: the other lane must not wait for it for ever.
fn outcome_of(step: impl FnOnce() -> anyhow::Result<Outcome>) -> Outcome {
    match panic::catch_unwind(AssertUnwindSafe(step)) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::Failed(format!("{error:#}")),
        Err(_) => Outcome::Failed("the step panicked".to_owned()),
    }
}

/// Prints what the side lane printed.
fn show(state: &mut LaneState) {
    print!("{}", std::mem::take(&mut state.unshown));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        test::{Pace, child_process::Interrupt},
        workspace::Workspace,
    };

    fn step(name: &'static str, lane: Lane, needs: &'static [&'static str]) -> Step {
        Step {
            name,
            about: "nothing",
            needs,
            lane,
            run: |_| Ok(Outcome::Passed),
        }
    }

    #[test]
    fn steps_of_both_lanes_wait_for_each_other() {
        let steps = [
            step("a", Lane::Main, &[]),
            step("b", Lane::Side, &["a"]),
            step("c", Lane::Main, &["b"]),
            step("d", Lane::Side, &["c"]),
        ];
        let shared = SharedState::new(Workspace::load().unwrap(), Interrupt::default(), Pace::Full).unwrap();
        let steps: Vec<&Step> = steps.iter().collect();
        let report = run(&shared, &steps);
        assert!(report.passed());
        assert!(
            report.to_string().ends_with("4 passed, 0 failed, 0 skipped\n"),
            "{report}"
        );
    }

    #[test]
    fn a_step_that_panics_has_failed() {
        let Outcome::Failed(why) = outcome_of(|| panic!("on purpose")) else {
            panic!("it failed")
        };
        assert_eq!(why, "the step panicked");
    }

    #[test]
    fn needs_that_were_not_chosen_are_not_waited_for() {
        let alone = step("a", Lane::Main, &["never"]);
        let shared = SharedState::new(Workspace::load().unwrap(), Interrupt::default(), Pace::Full).unwrap();
        assert!(run(&shared, &[&alone]).passed());
    }
}
