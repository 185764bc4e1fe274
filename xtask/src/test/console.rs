//! Where the words of a step go.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// The terminal, or a text that is shown when the step has ended: two steps that speak at once cannot be read.
#[derive(Debug, Clone)]
pub(super) enum Console {
    /// Shown at once.
    Screen,
    /// Kept until it is taken.
    Kept(Arc<Mutex<String>>),
}

impl Console {
    /// A console that keeps what is printed.
    pub(super) fn kept() -> Self {
        Self::Kept(Arc::default())
    }

    /// Prints a line, or several.
    pub(super) fn print(&self, words: fmt::Arguments<'_>) {
        match self {
            Self::Screen => println!("{words}"),
            Self::Kept(text) => {
                let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
                text.push_str(&words.to_string());
                text.push('\n');
            }
        }
    }

    /// Everything kept since the last call; nothing for the screen.
    pub(super) fn take(&self) -> String {
        match self {
            Self::Screen => String::new(),
            Self::Kept(text) => std::mem::take(&mut text.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_words_are_taken_once() {
        let console = Console::kept();
        console.clone().print(format_args!("one"));
        console.print(format_args!("two"));
        assert_eq!(console.take(), "one\ntwo\n");
        assert_eq!(console.take(), "");
    }
}
