//! Sections of a test that share what is dear to start.

/// Runs a section of a test. If it fails, the output names the section.
pub fn section<T>(holds: &str, run: impl FnOnce() -> T) -> T {
    let _named = NamedSection(holds);
    run()
}

struct NamedSection<'a>(&'a str);

impl Drop for NamedSection<'_> {
    #[expect(clippy::print_stderr, reason = "the name belongs to the output of the test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the section that failed: {}", self.0);
        }
    }
}
