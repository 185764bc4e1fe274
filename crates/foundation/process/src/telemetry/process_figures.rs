//! The figures of the process itself, read from `/proc` when a scraper asks: memory, processor time, descriptors.

use std::fs;

use crate::task::running_tasks;

/// Ticks of a second in `/proc/PID/stat`: Linux shows 100 to programs, whatever its own clock.
const USER_TICKS: u64 = 100;

/// The times of `/proc/self/stat`, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessTimes {
    /// Processor time, in user and system mode.
    cpu: u64,
    /// The start of the process, since the machine started.
    start: u64,
}

/// Sets the metrics of this process. On a system without `/proc` nothing but the tasks is set.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(super) fn measure() {
    let set = |name: &'static str, value: u64| metrics::gauge!(name).set(value as f64);
    set("muster_tasks_running", running_tasks());
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    if let Some(times) = parse_times(&read("/proc/self/stat")) {
        metrics::counter!("process_cpu_seconds_total").absolute(times.cpu / USER_TICKS);
        if let Some(boot) = field_of(&read("/proc/stat"), "btime ") {
            let start = boot.saturating_add(times.start / USER_TICKS);
            set("process_start_time_seconds", start);
        }
    }
    let status = read("/proc/self/status");
    for (name, field, unit) in [
        ("process_threads", "Threads:", 1),
        ("process_virtual_memory_bytes", "VmSize:", 1_024),
        ("process_resident_memory_bytes", "VmRSS:", 1_024),
    ] {
        if let Some(value) = field_of(&status, field) {
            set(name, value.saturating_mul(unit));
        }
    }
    if let Ok(descriptors) = fs::read_dir("/proc/self/fd") {
        set(
            "process_open_fds",
            u64::try_from(descriptors.count()).unwrap_or(u64::MAX),
        );
    }
    if let Some(most) = field_of(&read("/proc/self/limits"), "Max open files") {
        set("process_max_fds", most);
    }
}

/// Reads a line of `/proc/PID/stat`. The second field is the program's name in brackets, which may hold anything, so
/// the rest begins after the last bracket (proc_pid_stat(5)).
fn parse_times(line: &str) -> Option<ProcessTimes> {
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // `rest` begins with the third field of the manual page.
    let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
    Some(ProcessTimes {
        cpu: field(14)?.saturating_add(field(15)?),
        start: field(22)?,
    })
}

/// The first number after `name` in the line that begins with it.
fn field_of(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_whose_name_holds_brackets_is_read() {
        let line = "7 (a) b) R 1 7 7 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 5 0 1234 4096000 250";
        assert_eq!(
            parse_times(line),
            Some(ProcessTimes {
                cpu: 42,
                start: 1_234
            })
        );
        for broken in [
            "",
            "7 (a",
            "7 (a) R 1 2",
            "7 (a) R x x x x x x x x x x x x x x x x x x x x x x",
        ] {
            assert_eq!(parse_times(broken), None, "{broken}");
        }
    }

    #[test]
    fn fields_are_read_by_their_names_and_an_unlimited_one_is_none() {
        assert_eq!(
            field_of("VmSize:\t 9 kB\nVmRSS:\t  812 kB\n", "VmRSS:"),
            Some(812)
        );
        assert_eq!(
            field_of("Max open files   unlimited  unlimited", "Max open files"),
            None
        );
    }

    #[test]
    fn the_files_of_this_system_have_the_fields() {
        let read = |path: &str| fs::read_to_string(path).unwrap();
        assert!(parse_times(&read("/proc/self/stat")).is_some());
        assert!(field_of(&read("/proc/stat"), "btime ").unwrap() > 1_000_000_000);
        assert!(field_of(&read("/proc/self/status"), "VmRSS:").unwrap() > 100);
        assert!(field_of(&read("/proc/self/status"), "Threads:").unwrap() >= 1);
    }
}
