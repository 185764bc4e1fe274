//! The options of `muster job run` about how the program is started.

use clap::Args;
use muster_protocol::job::ProgramStart;

/// How the program is started, where the image does not decide.
#[derive(Debug, Default, Clone, Args)]
pub struct StartOptions {
    /// The working directory of the program; by default the image's own.
    ///
    /// An absolute path, which is made if it is not there. A program may write there only where it may write anyway.
    #[arg(
        long,
        short = 'w',
        value_name = "PATH",
        value_parser = workdir,
        help_heading = "Program",
        hide_short_help = true
    )]
    pub workdir: Option<String>,
    /// The program in place of the image's entry point.
    ///
    /// As docker's: the words behind `--` are its arguments, and the image's own are not used.
    ///
    /// With an empty text there is no entry point: the first word behind `--` is the program.
    #[arg(
        long,
        value_name = "PROGRAM",
        value_parser = entrypoint,
        help_heading = "Program",
        hide_short_help = true
    )]
    pub entrypoint: Option<String>,
}

/// Reads a working directory.
///
/// # Errors
/// The reason why no program can be started there.
pub fn workdir(text: &str) -> Result<String, String> {
    let start = ProgramStart {
        workdir: Some(text.to_owned()),
        ..ProgramStart::default()
    };
    start.find_flaw().map_or_else(|| Ok(text.to_owned()), Err)
}

/// Reads an entry point.
///
/// # Errors
/// The reason why it can be none.
pub fn entrypoint(text: &str) -> Result<String, String> {
    let start = ProgramStart {
        entrypoint: Some(text.to_owned()),
        ..ProgramStart::default()
    };
    start.find_flaw().map_or_else(|| Ok(text.to_owned()), Err)
}

impl StartOptions {
    /// How the program is started; `None` where the image decides. `stdin` is the input for its standard input.
    pub fn start(&self, stdin: Option<String>) -> Option<ProgramStart> {
        let start = ProgramStart {
            workdir: self.workdir.clone(),
            entrypoint: self.entrypoint.clone(),
            stdin,
        };
        (start != ProgramStart::default()).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_for_unless_an_option_or_an_input_does() {
        let mut options = StartOptions::default();
        assert_eq!(options.start(None), None);
        assert_eq!(
            options.start(Some("stdin".to_owned())).unwrap().stdin.as_deref(),
            Some("stdin")
        );
        options.entrypoint = Some(String::new());
        assert_eq!(options.start(None).unwrap().entrypoint.as_deref(), Some(""));
    }

    #[test]
    fn a_working_directory_is_absolute() {
        assert_eq!(workdir("/a b"), Ok("/a b".to_owned()));
        assert!(workdir("a").unwrap_err().contains("absolute path"));
        assert!(workdir("").is_err());
        assert_eq!(entrypoint(""), Ok(String::new()));
        assert!(entrypoint(&"x".repeat(5_000)).is_err());
    }
}
