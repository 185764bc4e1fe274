//! The parts of a table on the screen, and how they are painted.

/// How a row or a fact is painted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Plain,
    Good,
    Busy,
    Bad,
    /// It is over.
    Past,
}

/// One table of a screen, chosen by a tab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) head: &'static [&'static str],
    pub(crate) rows: Vec<PanelRow>,
}

/// One row of a table. All of its texts are safe for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PanelRow {
    pub(crate) cells: Vec<String>,
    pub(crate) mark: Mark,
    /// The text below the table when the row is chosen.
    pub(crate) details: String,
}

/// A fact of the head.
pub(crate) type Fact = (String, Mark);
