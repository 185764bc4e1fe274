//! Programs of jobs that go on until their test lets them end: a fault finds them at work on the slowest machine.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use muster_testbed::patience;

use crate::image::BUSYBOX;
use crate::process::run;

/// The file in a container that lets its program end.
const RELEASED: &str = "/tmp/released";
/// The beats of such a program in a second.
const BEATS: u64 = 5;

/// Shell commands that run `beat` five times a second until their container is released, or for the patience of the
/// tests. `$beat` is the number of the beat, from 1.
pub fn while_held(beat: &str) -> String {
    let longest = patience().as_secs().saturating_mul(BEATS);
    format!(
        "beat=0; while [ ! -e {RELEASED} ] && [ $beat -lt {longest} ]; do beat=$((beat+1)); {beat} \
         {BUSYBOX} sleep 0.2; done;"
    )
}

/// The time limit of a program that is held, in seconds: a little longer than it goes on if nobody releases it.
pub fn held_limit_s() -> u64 {
    patience().saturating_add(Duration::from_secs(60)).as_secs()
}

/// Lets the programs of an attempt end that run now on this engine (empty: the machine's); how many those were.
///
/// # Errors
/// The engine's command line cannot be started.
pub fn release(engine: &str, attempt: &str) -> Result<usize> {
    let docker = |arguments: &[&str]| {
        let mut docker = Command::new("docker");
        if !engine.is_empty() {
            docker.args(["--host", engine]);
        }
        run(docker.args(arguments))
    };
    let label = format!("label=muster.attempt={attempt}");
    let running = docker(&["ps", "--quiet", "--filter", &label])?;
    let mut released = 0;
    for container in running.stdout.lines() {
        // One that has just ended, or has not quite begun, is none.
        let touched = docker(&["exec", container, BUSYBOX, "touch", RELEASED])?;
        released += usize::from(touched.code == Some(0));
    }
    Ok(released)
}
