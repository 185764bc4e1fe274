//! Standard input: this command's as an input of a job, and an input as the program's.

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::Path;

use anyhow::{Context as _, bail};
use rustix::fs::FileType;
use tempfile::NamedTempFile;

/// The source that means this command's standard input, and the path that means the program's.
const STANDARD_INPUT: &str = "-";

/// The path below `/volume` of the input that the program reads from its standard input.
const STDIN_PATH: &str = "stdin";

/// The inputs of the command line without any `-`.
#[derive(Debug, Default)]
pub(crate) struct Spooled {
    /// Each as `PATH=SOURCE`.
    pub(crate) inputs: Vec<String>,
    /// The copy of this command's standard input, if an input asks for it. The file lies there until it is dropped.
    pub(crate) file: Option<NamedTempFile>,
    /// The path of the input that the program reads from its standard input.
    pub(crate) stdin: Option<String>,
}

/// Whether something waits in standard input, which is a pipe or a file: a user may believe that the program reads it.
pub(crate) fn holds_something(standard_input: BorrowedFd<'_>) -> bool {
    let Ok(found) = rustix::fs::fstat(standard_input) else {
        return false;
    };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Fifo => {
            let waiting = rustix::io::ioctl_fionread(standard_input);
            waiting.is_ok_and(|bytes| bytes > 0)
        }
        FileType::RegularFile => found.st_size > 0,
        FileType::Directory
        | FileType::Symlink
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => false,
    }
}

/// One input of the command line.
struct InputText {
    path: String,
    /// `None` where the text has none, which is refused later.
    source: Option<String>,
}

impl InputText {
    fn read(text: &str) -> Self {
        let (path, source) = match text.split_once('=') {
            Some((path, source)) => (path, Some(source)),
            None if text == STANDARD_INPUT => (STANDARD_INPUT, Some(STANDARD_INPUT)),
            None => (text, None),
        };
        Self {
            path: path.to_owned(),
            source: source.map(str::to_owned),
        }
    }

    fn is_for_program(&self) -> bool {
        self.path == STANDARD_INPUT
    }

    fn is_from_here(&self) -> bool {
        self.source.as_deref() == Some(STANDARD_INPUT)
    }

    /// As [`Named::read`](super::Named::read) reads it, with the file in the place of this command's standard input.
    fn into_text(self, file: Option<&Path>) -> String {
        let path = match self.is_for_program() {
            true => STDIN_PATH,
            false => &self.path,
        };
        match (file.filter(|_| self.is_from_here()), &self.source) {
            (Some(file), _) => format!("{path}={}", shown(file)),
            (None, Some(source)) => format!("{path}={source}"),
            (None, None) => path.to_owned(),
        }
    }
}

/// Replaces `PATH=-` by `PATH=FILE`, where FILE has what `from` holds, and `-` or `-=SOURCE` by an input for the
/// program's standard input.
///
/// # Errors
/// Two inputs ask for one of the two, the program is to read a terminal, or `from` cannot be read.
pub(crate) fn spool(inputs: &[String], from: impl Read, is_terminal: bool) -> anyhow::Result<Spooled> {
    let inputs: Vec<_> = inputs.iter().map(|text| InputText::read(text)).collect();
    let from_here = inputs.iter().filter(|input| input.is_from_here()).count();
    let for_program: Vec<_> = inputs.iter().filter(|input| input.is_for_program()).collect();
    if from_here > 1 {
        bail!("standard input can be one input only");
    }
    if for_program.len() > 1 {
        bail!("a program has one standard input: `-i -` or `-i -=SOURCE` may stand there once");
    }
    let stdin = for_program.first().map(|_| STDIN_PATH.to_owned());
    if stdin.is_some() && inputs.iter().any(|input| input.path == STDIN_PATH) {
        bail!("the input {STDIN_PATH:?} cannot stand beside `-i -`, which lies there");
    }
    if is_terminal && for_program.iter().any(|input| input.is_from_here()) {
        bail!(
            "standard input is a terminal, and a job's program cannot read one: pipe something into this command, or \
             name a file with `-i -=FILE`"
        );
    }
    let file = (from_here == 1).then(|| copy(from)).transpose()?;
    let path = file.as_ref().map(NamedTempFile::path);
    Ok(Spooled {
        inputs: inputs.into_iter().map(|input| input.into_text(path)).collect(),
        file,
        stdin,
    })
}

fn copy(mut from: impl Read) -> anyhow::Result<NamedTempFile> {
    let mut file = NamedTempFile::new().context("cannot make a temporary file")?;
    io::copy(&mut from, &mut file).context("cannot read standard input")?;
    Ok(file)
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    fn words(inputs: &[&str]) -> Vec<String> {
        inputs.iter().map(|input| (*input).to_owned()).collect()
    }

    fn refused(inputs: &[&str], is_terminal: bool) -> String {
        let spooled = spool(&words(inputs), io::empty(), is_terminal);
        spooled.unwrap_err().to_string()
    }

    #[test]
    fn standard_input_becomes_a_file() {
        let spooled = spool(&words(&["a=b", "words.txt=-"]), &b"one\n"[..], true).unwrap();
        let file = spooled.file.unwrap();
        assert_eq!(
            spooled.inputs,
            ["a=b".to_owned(), format!("words.txt={}", shown(file.path()))]
        );
        assert_eq!(spooled.stdin, None);
        assert_eq!(std::fs::read(file.path()).unwrap(), b"one\n");
        let spooled = spool(&words(&["a=b", "odd"]), io::empty(), false).unwrap();
        assert!(spooled.inputs == ["a=b", "odd"] && spooled.file.is_none());
    }

    #[test]
    fn the_programs_standard_input_is_an_input_that_is_named() {
        let spooled = spool(&words(&["-", "a=b"]), &b"\x00\xff"[..], false).unwrap();
        let file = spooled.file.unwrap();
        assert_eq!(
            spooled.inputs,
            [format!("stdin={}", shown(file.path())), "a=b".to_owned()]
        );
        assert_eq!(spooled.stdin.as_deref(), Some("stdin"));
        assert_eq!(std::fs::read(file.path()).unwrap(), b"\x00\xff");
        let spooled = spool(&words(&["-=https://h/x?a=b"]), io::empty(), true).unwrap();
        assert_eq!(spooled.inputs, ["stdin=https://h/x?a=b"]);
        assert!(spooled.file.is_none() && spooled.stdin.is_some());
    }

    #[test]
    fn text_that_waits_in_a_pipe_or_a_file_is_noticed_and_an_empty_one_is_not() {
        let (reader, mut writer) = io::pipe().unwrap();
        assert!(!holds_something(reader.as_fd()));
        io::Write::write_all(&mut writer, b"one").unwrap();
        assert!(holds_something(reader.as_fd()));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!holds_something(null.as_fd()));
        let mut file = tempfile::tempfile().unwrap();
        assert!(!holds_something(file.as_fd()));
        io::Write::write_all(&mut file, b"one").unwrap();
        assert!(holds_something(file.as_fd()));
    }

    #[test]
    fn standard_input_twice_or_from_a_terminal_is_refused() {
        for (inputs, word) in [
            (&["a=-", "b=-"][..], "one input only"),
            (&["-", "b=-"], "one input only"),
            (&["-", "-=f"], "one standard input"),
            (&["-=f", "stdin=g"], "cannot stand beside"),
        ] {
            let told = refused(inputs, false);
            assert!(told.contains(word), "{inputs:?}: {told}");
        }
        let told = refused(&["-"], true);
        assert!(
            told.contains("is a terminal") && told.contains("-i -=FILE"),
            "{told}"
        );
    }
}
