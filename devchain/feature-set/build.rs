//! Does nothing: cargo resolves `[build-dependencies]` only for a crate with a build script.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
