//! Coverage-guided fuzzing of one parser: the variable `MUSTER_FUZZ_TARGET` names it. Without it, and with the argument
//! `list`, the program prints the names of all parsers.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use muster_fuzz::Target;

static CHOSEN: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = std::env::var("MUSTER_FUZZ_TARGET").unwrap_or_default();
    let found = muster_fuzz::all().into_iter().find(|(known, _)| *known == name);
    if let Some((_, target)) = found {
        return target;
    }
    // Asked for a list, or a wrong name: both are answered with the names.
    for (name, _) in muster_fuzz::all() {
        println!("{name}");
    }
    std::process::exit(if name.is_empty() { 0 } else { 1 })
}

fuzz_target!(|data: &[u8]| (CHOSEN.get_or_init(chosen))(data));
