//! The machines of a cluster, as `sinfo` shows them, and the executors that they can hold.

use std::collections::{BTreeMap, BTreeSet};

use crate::gres::{GresAmount, fits, parse_node};

/// The columns that `sinfo --Node` is asked for: node, state, CPUs, memory in MiB, threads of a core, generic
/// resources, whether the partition is up, partition.
pub(crate) const FORMAT: &str = "%N|%T|%c|%m|%Z|%G|%a|%P";

/// One node in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlurmNode {
    /// The node's name.
    pub(crate) name: String,
    /// The state with its flags, in lower case.
    pub(crate) state: String,
    /// All CPUs, busy ones included.
    pub(crate) cpus: u64,
    /// All memory in MiB.
    pub(crate) memory_mib: u64,
    /// The CPUs of one core.
    pub(crate) threads: u64,
    /// All generic resources.
    pub(crate) gres: Vec<GresAmount>,
    /// Whether the partition starts jobs.
    pub(crate) partition_up: bool,
    /// Whether the partition is the cluster's default one.
    pub(crate) in_default: bool,
}

/// The request of one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeRequest {
    /// CPUs; 0 for Slurm's default.
    pub(crate) cpus: u64,
    /// Memory in MiB; 0 for Slurm's default.
    pub(crate) memory_mib: u64,
    /// Generic resources; empty for none.
    pub(crate) gres: Vec<GresAmount>,
    /// Whether an executor gets a node of its own.
    pub(crate) whole_node: bool,
    /// Whether it runs in a reservation.
    pub(crate) in_reservation: bool,
    /// Whether only nodes of the default partition count, because the pool names none.
    pub(crate) only_default: bool,
}

/// Reads the output of `sinfo`. A line that is none of a node is left out.
pub(crate) fn parse(output: &[u8]) -> Vec<SlurmNode> {
    String::from_utf8_lossy(output)
        .lines()
        .filter_map(parse_line)
        .collect()
}

fn parse_line(line: &str) -> Option<SlurmNode> {
    let fields: Vec<&str> = line.trim().split('|').collect();
    let [
        name,
        state,
        cpus,
        memory,
        threads,
        gres,
        partition_state,
        partition,
    ] = fields.as_slice()
    else {
        return None;
    };
    Some(SlurmNode {
        name: (*name).to_owned(),
        state: state.to_ascii_lowercase(),
        cpus: cpus.parse().ok()?,
        memory_mib: memory.parse().ok()?,
        // It is a range where a line stands for several nodes, which it does not here.
        threads: threads.parse().unwrap_or(1).max(1),
        gres: parse_node(gres),
        partition_up: *partition_state == "up",
        in_default: partition.ends_with('*'),
    })
}

/// The executors of this request that the nodes can hold at one time.
pub(crate) fn places(nodes: &[SlurmNode], request: &NodeRequest, excluded: &BTreeSet<String>) -> u32 {
    let usable = nodes.iter().filter(|node| {
        node.partition_up
            && (node.in_default || !request.only_default)
            && starts_jobs(&node.state, request.in_reservation)
            && !excluded.contains(&node.name)
    });
    // A node of several partitions has a line for each.
    let by_name: BTreeMap<&str, &SlurmNode> = usable.map(|node| (node.name.as_str(), node)).collect();
    let sum = by_name
        .into_values()
        .fold(0_u64, |sum, node| sum.saturating_add(places_of(node, request)));
    u32::try_from(sum).unwrap_or(u32::MAX)
}

fn places_of(node: &SlurmNode, request: &NodeRequest) -> u64 {
    // Slurm gives whole cores to a job.
    let cpus = request
        .cpus
        .max(1)
        .div_ceil(node.threads)
        .saturating_mul(node.threads);
    let by_cpus = node.cpus.checked_div(cpus).unwrap_or(0);
    let by_memory = node
        .memory_mib
        .checked_div(request.memory_mib)
        .unwrap_or(u64::MAX);
    let by_gres = fits(&request.gres, &node.gres).unwrap_or(u64::MAX);
    let fitting = by_cpus.min(by_memory).min(by_gres);
    if request.whole_node {
        fitting.min(1)
    } else {
        fitting
    }
}

/// Whether a node in this state starts jobs now, or once those that it runs have ended.
fn starts_jobs(state: &str, in_reservation: bool) -> bool {
    let base = state.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
    let flags = state.strip_prefix(base).unwrap_or_default();
    // It does not answer; it is in maintenance; it is about to boot again.
    if flags.contains(['*', '$', '@', '^']) {
        return false;
    }
    match base {
        // Slurm powers a node up when a job needs it.
        "idle" | "mixed" | "allocated" | "completing" | "planned" | "powered_down" | "powering_down"
        | "powering_up" => true,
        "reserved" => in_reservation,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gres::parse_request;

    const RECORDED: &[u8] = include_bytes!("../tests/recorded/sinfo.txt");

    fn request(gres: &str, cpus: u64, memory_mib: u64) -> NodeRequest {
        NodeRequest {
            cpus,
            memory_mib,
            gres: parse_request(gres).unwrap(),
            only_default: true,
            ..NodeRequest::default()
        }
    }

    #[test]
    fn the_recorded_nodes_hold_what_their_states_and_sizes_allow() {
        let nodes = parse(RECORDED);
        assert!(nodes.len() >= 3, "{nodes:?}");
        let none = BTreeSet::new();
        // Of the recorded nodes, one runs a job, one sees a job end, one does not answer and one is drained.
        assert_eq!(places(&nodes, &request("gpu:1", 1, 500), &none), 4);
        assert_eq!(places(&nodes, &request("gpu:h100:2", 1, 500), &none), 2);
        assert_eq!(places(&nodes, &request("gpu:a100:1", 1, 500), &none), 0);
        assert_eq!(places(&nodes, &request("gpu:1", 5, 500), &none), 2);
        assert_eq!(places(&nodes, &request("gpu:1", 1, 4001), &none), 0);
        assert_eq!(places(&nodes, &request("gpu:0", 0, 1000), &none), 8);
        let excluded = BTreeSet::from(["node0".to_owned()]);
        assert_eq!(places(&nodes, &request("gpu:1", 1, 500), &excluded), 2);
    }

    #[test]
    fn only_states_that_start_jobs_count() {
        for state in [
            "idle",
            "mixed",
            "allocated",
            "idle~",
            "mixed#",
            "allocated+",
            "idle-",
            "planned",
            "powered_down",
        ] {
            assert!(starts_jobs(state, false), "{state}");
        }
        for state in [
            "down",
            "down*",
            "drained",
            "draining",
            "drained*",
            "idle*",
            "allocated*",
            "maint",
            "idle$",
            "idle@",
            "inval",
            "unknown",
            "fail",
            "future",
            "reserved",
            "",
            "~",
            "blocked",
        ] {
            assert!(!starts_jobs(state, false), "{state}");
        }
        assert!(starts_jobs("reserved", true));
    }

    #[test]
    fn cores_partitions_and_whole_nodes_bound_the_places() {
        let lines = b"a|idle|16|4000|2|gpu:8|up|gpu*\na|idle|16|4000|2|gpu:8|up|all\nb|idle|16|4000|2|gpu:8|down|gpu*\n\
            c|idle|16|4000|2|gpu:8|up|all\n";
        let nodes = parse(lines);
        let none = BTreeSet::new();
        assert_eq!(nodes.len(), 4);
        // Three CPUs are two cores of two threads each.
        assert_eq!(places(&nodes, &request("gpu:1", 3, 0), &none), 4);
        let named = NodeRequest {
            only_default: false,
            ..request("gpu:1", 1, 0)
        };
        assert_eq!(places(&nodes, &named, &none), 16);
        let whole = NodeRequest {
            whole_node: true,
            ..request("gpu:1", 1, 0)
        };
        assert_eq!(places(&nodes, &whole, &none), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let nodes = parse(&bytes);
            let _ = places(&nodes, &request("gpu:1", 1, 1), &BTreeSet::new());
        }

        #[test]
        fn lines_of_odd_fields_are_read_without_a_panic(
            fields in proptest::collection::vec("[a-z0-9:*(),|~]{0,12}", 8),
        ) {
            let nodes = parse(fields.join("|").as_bytes());
            let _ = places(&nodes, &request("gpu:1,x:2", u64::MAX, u64::MAX), &BTreeSet::new());
        }

        #[test]
        fn the_places_of_a_node_never_ask_for_more_than_it_has(
            cpus in 1_u64..300, memory in 1_u64..100_000, gpus in 0_u64..17, threads in 1_u64..3,
            want_cpus in 0_u64..40, want_memory in 0_u64..9000, want_gpus in 0_u64..5,
        ) {
            let line = format!("n|idle|{cpus}|{memory}|{threads}|gpu:x:{gpus}(S:0)|up|p*");
            let nodes = parse(line.as_bytes());
            let asked = request(&format!("gpu:{want_gpus}"), want_cpus, want_memory);
            let held = u64::from(places(&nodes, &asked, &BTreeSet::new()));
            prop_assert!(held * want_cpus.max(1) <= cpus);
            prop_assert!(held * want_memory <= memory);
            prop_assert!(held * want_gpus <= gpus);
            // One more would not fit.
            let more = held + 1;
            let cores = want_cpus.max(1).div_ceil(threads) * threads;
            prop_assert!(more * cores > cpus || more * want_memory > memory || more * want_gpus > gpus);
            // Twice the nodes hold twice as many, and an excluded node holds none.
            let twice = parse(format!("{line}\nm{}", line.strip_prefix('n').unwrap()).as_bytes());
            prop_assert_eq!(u64::from(places(&twice, &asked, &BTreeSet::new())), 2 * held);
            prop_assert_eq!(places(&nodes, &asked, &BTreeSet::from(["n".to_owned()])), 0);
        }
    }
}
