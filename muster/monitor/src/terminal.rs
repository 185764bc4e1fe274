//! The terminal of `muster top`: it is taken when the screen opens, and given back however the screen ends.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_process::SharedClock;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use crate::board::Board;
use crate::screen::draw;
use crate::view::{AfterKey, MonitorKey, MonitorView};

/// How long a key is waited for before the screen looks at its status again.
const POLL: Duration = Duration::from_millis(100);
/// The screen is painted at least this often: it shows how old the status is.
const PAINT_EVERY: Duration = Duration::from_secs(1);

/// A status, or the reason for which there is none.
pub(crate) type Reading = Result<Board, String>;

/// The screen. Dropping it gives the terminal back; the hook that `ratatui` sets does so in a panic.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
    view: MonitorView,
    readings: mpsc::Receiver<Reading>,
    clock: SharedClock,
}

impl Screen {
    /// Takes the terminal.
    pub(crate) fn open(
        title: String,
        readings: mpsc::Receiver<Reading>,
        clock: SharedClock,
    ) -> io::Result<Self> {
        Ok(Self {
            terminal: ratatui::try_init()?,
            view: MonitorView::new(title),
            readings,
            clock,
        })
    }

    /// Paints and takes keys until a key or `stop` ends it.
    pub(crate) fn run(mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut painted_at = None;
        while !stop.load(Ordering::Acquire) {
            let now = self.clock.now();
            let is_old = painted_at.is_none_or(|at| now.since(at) >= PAINT_EVERY);
            if self.take_readings() || is_old {
                let view = &self.view;
                self.terminal.draw(|frame| draw(frame, view, now))?;
                painted_at = Some(now);
            }
            if !event::poll(POLL)? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let Some(key) = monitor_key(key) else { continue };
                    if self.view.press(key, now) == AfterKey::Quit {
                        break;
                    }
                }
                // The next painting asks the terminal for its size.
                Event::Resize(..) => {}
                Event::Key(_) | Event::FocusGained | Event::FocusLost | Event::Mouse(_) | Event::Paste(_) => {
                    continue;
                }
            }
            painted_at = None;
        }
        Ok(())
    }

    /// Takes the readings that have come; returns whether there were any.
    fn take_readings(&mut self) -> bool {
        let mut any = false;
        while let Ok(reading) = self.readings.try_recv() {
            any = true;
            match reading {
                Ok(board) => self.view.note_board(board, self.clock.now()),
                Err(problem) => self.view.note_problem(problem),
            }
        }
        any
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The hook has given it back and printed the panic; to leave the screen twice would paint over that text.
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = ratatui::try_restore() {
            // Standard error is the terminal, and the log of this command.
            tracing::debug!(%error, "the terminal could not be given back");
        }
    }
}

fn monitor_key(key: KeyEvent) -> Option<MonitorKey> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c' | 'd') if control => MonitorKey::Quit,
        KeyCode::Char('q') | KeyCode::Esc => MonitorKey::Quit,
        KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => MonitorKey::NextPanel,
        KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => MonitorKey::PreviousPanel,
        KeyCode::Char(digit @ '1'..='9') => {
            let number = digit.to_digit(10).unwrap_or(1).saturating_sub(1);
            MonitorKey::Panel(usize::try_from(number).unwrap_or_default())
        }
        KeyCode::Up | KeyCode::Char('k') => MonitorKey::Up,
        KeyCode::Down | KeyCode::Char('j') => MonitorKey::Down,
        KeyCode::PageUp => MonitorKey::PageUp,
        KeyCode::PageDown => MonitorKey::PageDown,
        KeyCode::Home | KeyCode::Char('g') => MonitorKey::First,
        KeyCode::End | KeyCode::Char('G') => MonitorKey::Last,
        KeyCode::Char('?') => MonitorKey::Help,
        // Of the other keys none has a meaning here.
        KeyCode::Backspace
        | KeyCode::Enter
        | KeyCode::Delete
        | KeyCode::Insert
        | KeyCode::F(_)
        | KeyCode::Char(_)
        | KeyCode::Null
        | KeyCode::CapsLock
        | KeyCode::ScrollLock
        | KeyCode::NumLock
        | KeyCode::PrintScreen
        | KeyCode::Pause
        | KeyCode::Menu
        | KeyCode::KeypadBegin
        | KeyCode::Media(_)
        | KeyCode::Modifier(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_c_quits_as_q_does_and_unknown_keys_do_nothing() {
        let key = |code, modifiers| monitor_key(KeyEvent::new(code, modifiers));
        assert_eq!(
            key(KeyCode::Char('c'), KeyModifiers::CONTROL),
            Some(MonitorKey::Quit)
        );
        assert_eq!(
            key(KeyCode::Char('q'), KeyModifiers::NONE),
            Some(MonitorKey::Quit)
        );
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(
            key(KeyCode::Char('3'), KeyModifiers::NONE),
            Some(MonitorKey::Panel(2))
        );
        assert_eq!(
            key(KeyCode::BackTab, KeyModifiers::SHIFT),
            Some(MonitorKey::PreviousPanel)
        );
    }
}
