//! Lines about a job between the lines of its program: none of them splits a line of the program. Pure.

use std::collections::VecDeque;

/// The most lines that wait; of more, the oldest are left out.
const MAX_HELD: usize = 256;

/// The last line of what a program printed, and the lines about the job that wait for its end.
#[derive(Debug, Default)]
pub(crate) struct OpenLine {
    /// The program's last line has not ended.
    is_open: bool,
    /// The program prints no more.
    is_over: bool,
    held: VecDeque<String>,
}

impl OpenLine {
    /// Whether the program's last line has not ended: it has the cursor.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Notes bytes that the program printed. Returns the lines that may be printed behind them.
    pub(crate) fn printed(&mut self, bytes: &[u8]) -> Vec<String> {
        let Some(last) = bytes.last() else {
            return Vec::new();
        };
        self.is_open = *last != b'\n';
        if self.is_open {
            Vec::new()
        } else {
            std::mem::take(&mut self.held).into()
        }
    }

    /// A line about the job. Returns the text if it may be printed now; otherwise it waits. Behind the program's end
    /// the first one ends the program's last line.
    pub(crate) fn say(&mut self, line: String) -> Option<String> {
        match (self.is_open, self.is_over) {
            (false, _) => Some(line),
            (true, true) => {
                self.is_open = false;
                Some(format!("\n{line}"))
            }
            (true, false) => {
                self.held.push_back(line);
                if self.held.len() > MAX_HELD {
                    self.held.pop_front();
                }
                None
            }
        }
    }

    /// The program prints no more. Returns the lines that have waited.
    pub(crate) fn finish(&mut self) -> Vec<String> {
        self.is_over = true;
        let held = std::mem::take(&mut self.held);
        held.into_iter().filter_map(|line| self.say(line)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A piece of a program's output, or a line about its job.
    #[derive(Clone, Debug)]
    enum Step {
        Program(&'static str),
        Status(&'static str),
    }

    /// The lines of a terminal: `\n` begins another line, `\r` goes back to the beginning of the line.
    #[derive(Debug, Default)]
    struct Screen {
        lines: Vec<String>,
        column: usize,
    }

    impl Screen {
        fn write(&mut self, text: &str) {
            for letter in text.chars() {
                let line = match self.lines.last_mut() {
                    Some(line) => line,
                    None => {
                        self.lines.push(String::new());
                        self.lines.last_mut().unwrap()
                    }
                };
                match letter {
                    '\n' => {
                        self.lines.push(String::new());
                        self.column = 0;
                    }
                    '\r' => self.column = 0,
                    letter => {
                        let mut letters: Vec<char> = line.chars().collect();
                        match letters.get_mut(self.column) {
                            Some(place) => *place = letter,
                            None => letters.push(letter),
                        }
                        *line = letters.into_iter().collect();
                        self.column += 1;
                    }
                }
            }
        }
    }

    fn shown(steps: &[Step]) -> Vec<String> {
        let (mut screen, mut line) = (Screen::default(), OpenLine::default());
        for step in steps {
            match step {
                Step::Program(text) => {
                    screen.write(text);
                    for held in line.printed(text.as_bytes()) {
                        screen.write(&format!("{held}\n"));
                    }
                }
                Step::Status(text) => {
                    if let Some(now) = line.say((*text).to_owned()) {
                        screen.write(&format!("{now}\n"));
                    }
                }
            }
        }
        for held in line.finish() {
            screen.write(&format!("{held}\n"));
        }
        screen.lines
    }

    #[test]
    fn status_waits_for_the_end_of_the_programs_line() {
        use Step::{Program, Status};
        let steps = [
            Status("preparing"),
            Program("one "),
            Status("running"),
            Program("line\ntwo"),
            Status("delivering"),
        ];
        assert_eq!(
            shown(&steps),
            ["preparing", "one line", "two", "running", "delivering", ""]
        );
    }

    #[test]
    fn progress_bar_of_a_program_stays_in_one_line() {
        use Step::{Program, Status};
        let steps = [
            Program("  0%"),
            Status("running"),
            Program("\r 50%"),
            Program("\r100%\n"),
            Status("done"),
        ];
        assert_eq!(shown(&steps), ["100%", "running", "done", ""]);
    }

    proptest! {
        #[test]
        fn no_line_of_the_program_is_split_and_no_status_is_lost(
            steps in prop::collection::vec(
                prop::sample::select(vec!["a", "bc", "\n", "d\n", "e\nf", "#1", "#2"]), 0..40,
            ),
        ) {
            let steps: Vec<_> = steps
                .into_iter()
                .map(|text| match text.strip_prefix('#') {
                    Some(_) => Step::Status(text),
                    None => Step::Program(text),
                })
                .collect();
            let lines = shown(&steps);
            let program: String = steps
                .iter()
                .filter_map(|step| match step {
                    Step::Program(text) => Some(*text),
                    Step::Status(_) => None,
                })
                .collect();
            let (status, printed): (Vec<_>, Vec<_>) =
                lines.into_iter().partition(|line| line.starts_with('#'));
            let printed = printed.join("\n");
            prop_assert_eq!(printed.trim_end(), program.trim_end());
            let said: Vec<_> = steps
                .iter()
                .filter_map(|step| match step {
                    Step::Status(text) => Some((*text).to_owned()),
                    Step::Program(_) => None,
                })
                .collect();
            prop_assert_eq!(status, said);
        }
    }
}
