//! The demo job: counts how often each word occurs in the files of a folder.
//!
//! The program of this crate is the only file of the demo's image, so it is linked statically:
//!
//! ```sh
//! RUSTFLAGS="-C target-feature=+crt-static" cargo build -p muster-image-hello --target x86_64-unknown-linux-gnu
//! ```
//!
//! The flags do not reach what is built for this machine, because the target is named.

pub mod parrot;
pub mod probe;
pub mod serve;
pub mod words;

/// The folder with a job's inputs.
pub const VOLUME: &str = "/volume";
/// The folder for the demo job's result, which is its `artifacts_dir`.
pub const ARTIFACTS: &str = "/artifacts";
/// The folder for files that a job uploads.
pub const OUTPUT: &str = "/output";
/// The file name of the demo job's result in [`ARTIFACTS`] and [`OUTPUT`].
pub const RESULT: &str = "words.json";
/// The path of the program in the image.
pub const PROGRAM: &str = "/hello";
