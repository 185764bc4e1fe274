//! Coverage-guided fuzzing of every parser: the first byte selects the parser.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(rest) else {
        return;
    };
    let (_, target) = targets::TARGETS[usize::from(choice) % targets::TARGETS.len()];
    target(text);
});
