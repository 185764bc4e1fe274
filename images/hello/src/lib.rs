//! The demo job: how often each word occurs in the files of a folder.
//!
//! The program of this crate is the only file of the demo's image, so it is linked statically:
//!
//! ```sh
//! RUSTFLAGS="-C target-feature=+crt-static" cargo build -p muster-image-hello \
//!     --target x86_64-unknown-linux-gnu --target-dir target/static
//! ```
//!
//! (A target folder of its own, so that the flags do not rebuild everything else.)

pub mod parrot;
pub mod probe;
pub mod serve;
pub mod words;

/// Where a job finds its inputs.
pub const VOLUME: &str = "/volume";
/// Where the demo job leaves its result; its `artifacts_dir`.
pub const ARTIFACTS: &str = "/artifacts";
/// Where a job leaves what is to be uploaded.
pub const OUTPUT: &str = "/output";
/// The demo job's result inside [`ARTIFACTS`] and [`OUTPUT`].
pub const RESULT: &str = "words.json";
/// Where the image holds the program.
pub const PROGRAM: &str = "/hello";
