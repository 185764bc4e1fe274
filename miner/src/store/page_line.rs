//! One line of a receipt page, as the store keeps it.

/// One line of a receipt page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageLine {
    /// The number of the page.
    pub page: i64,
    /// A receipt as JSON, without the line feed.
    pub line: String,
}
