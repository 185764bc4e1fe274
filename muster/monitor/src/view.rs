//! The screen's state: the newest status, and the choices of the keys.

use muster_protocol::Timestamp;

use crate::board::Board;
use crate::panels::{Panel, panels};

/// A key, as far as the screens know keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorKey {
    /// To the next panel.
    NextPanel,
    /// To the panel before.
    PreviousPanel,
    /// To the panel of this number, from 0.
    Panel(usize),
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the first row.
    First,
    /// To the last row.
    Last,
    /// Shows or hides the help.
    Help,
    /// Ends the program.
    Quit,
}

/// The step that follows a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterKey {
    /// The screen is painted again.
    Paint,
    /// The program ends.
    Quit,
}

/// Rows of a page.
const PAGE: usize = 10;

/// The screen: the newest status, and the choices of the keys.
#[derive(Clone, Debug, Default)]
pub struct MonitorView {
    title: String,
    board: Option<Board>,
    read_at: Option<Timestamp>,
    /// The reason for which the last reading failed.
    problem: Option<String>,
    panel: usize,
    row: usize,
    help: bool,
}

// === impl MonitorView ===

impl MonitorView {
    /// A screen that has read nothing yet. `title` names what it looks at.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// Takes a status that was read at `now`.
    pub fn note_board(&mut self, board: Board, now: Timestamp) {
        self.board = Some(board);
        self.read_at = Some(now);
        self.problem = None;
        self.keep_in_bounds(now);
    }

    /// Takes the reason for which a reading failed. The last status stays on the screen.
    pub fn note_problem(&mut self, problem: impl Into<String>) {
        self.problem = Some(problem.into());
    }

    /// Takes a key.
    pub fn press(&mut self, key: MonitorKey, now: Timestamp) -> AfterKey {
        let panels = self.panels(now);
        let (count, rows) = (
            panels.len().max(1),
            panels.get(self.panel).map_or(0, |panel| panel.rows.len()),
        );
        let last = rows.saturating_sub(1);
        match key {
            MonitorKey::NextPanel => self.choose_panel((self.panel + 1) % count),
            MonitorKey::PreviousPanel => self.choose_panel((self.panel + count - 1) % count),
            MonitorKey::Panel(number) if number < count => self.choose_panel(number),
            MonitorKey::Panel(_) => {}
            MonitorKey::Up => self.row = self.row.saturating_sub(1),
            MonitorKey::Down => self.row = self.row.saturating_add(1).min(last),
            MonitorKey::PageUp => self.row = self.row.saturating_sub(PAGE),
            MonitorKey::PageDown => self.row = self.row.saturating_add(PAGE).min(last),
            MonitorKey::First => self.row = 0,
            MonitorKey::Last => self.row = last,
            MonitorKey::Help => self.help = !self.help,
            MonitorKey::Quit => return AfterKey::Quit,
        }
        AfterKey::Paint
    }

    fn choose_panel(&mut self, panel: usize) {
        self.panel = panel;
        self.row = 0;
    }

    /// The tables of the newest status.
    pub(crate) fn panels(&self, now: Timestamp) -> Vec<Panel> {
        self.board
            .as_ref()
            .map_or_else(Vec::new, |board| panels(board, now))
    }

    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    pub(crate) fn board(&self) -> Option<&Board> {
        self.board.as_ref()
    }

    pub(crate) fn read_at(&self) -> Option<Timestamp> {
        self.read_at
    }

    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// The chosen panel and row.
    pub(crate) fn chosen(&self) -> (usize, usize) {
        (self.panel, self.row)
    }

    pub(crate) fn shows_help(&self) -> bool {
        self.help
    }

    /// A list may have become shorter.
    fn keep_in_bounds(&mut self, now: Timestamp) {
        let panels = self.panels(now);
        self.panel = self.panel.min(panels.len().saturating_sub(1));
        let rows = panels.get(self.panel).map_or(0, |panel| panel.rows.len());
        self.row = self.row.min(rows.saturating_sub(1));
    }
}
