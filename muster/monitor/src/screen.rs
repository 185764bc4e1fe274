//! Painting: the head with the state, the tabs, one table, and the details of the chosen row.

use muster_protocol::Timestamp;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Table, TableState, Wrap};

use crate::panels::{Mark, Panel, headline};
use crate::text::{age, sanitize};
use crate::view::MonitorView;

/// A terminal below this size shows a single line.
const LEAST_WIDTH: u16 = 24;
const LEAST_HEIGHT: u16 = 6;
/// From this height on, the chosen row has its details below the table.
const DETAILS_FROM: u16 = 16;

const HELP: &[&str] = &[
    "tab, shift-tab, 1-9   another panel",
    "up, down, j, k        another row",
    "page up, page down    ten rows",
    "home, end, g, G       first and last row",
    "?                     this help",
    "q, esc, ctrl-c        quit",
];

/// Paints the screen as it is at `now`.
pub fn draw(frame: &mut Frame<'_>, view: &MonitorView, now: Timestamp) {
    let area = frame.area();
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        frame.render_widget(Paragraph::new("muster: too small"), area);
        return;
    }
    let panels = view.panels(now);
    let (chosen, row) = view.chosen();
    let panel = panels.get(chosen);
    let details = panel
        .and_then(|panel| panel.rows.get(row))
        .map(|row| row.details.clone());
    let has_details = area.height >= DETAILS_FROM && details.is_some();
    let rows = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(if has_details { 4 } else { 0 }),
        Constraint::Length(1),
    ]);
    let [head, tabs, table, below, foot] = rows.areas(area);
    draw_head(frame, head, view, now);
    draw_tabs(frame, tabs, &panels, chosen);
    match panel {
        Some(panel) => draw_table(frame, table, panel, row),
        None => frame.render_widget(Paragraph::new("reading …"), table),
    }
    if let Some(details) = details.filter(|_| has_details) {
        let block = Block::new().borders(Borders::TOP);
        frame.render_widget(
            Paragraph::new(details).wrap(Wrap { trim: false }).block(block),
            below,
        );
    }
    let keys = "tab panel · ↑↓ row · ? help · q quit";
    frame.render_widget(Paragraph::new(keys).style(faint()), foot);
    if view.shows_help() {
        draw_help(frame, area);
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &MonitorView, now: Timestamp) {
    let fresh = match (view.problem(), view.read_at()) {
        (Some(problem), _) => Span::styled(format!("  {}", sanitize(problem)), style(Mark::Bad)),
        (None, Some(at)) => Span::styled(format!("  {} ago", age(Some(at), now)), faint()),
        (None, None) => Span::raw(""),
    };
    let title = Span::styled(sanitize(view.title()), Style::new().add_modifier(Modifier::BOLD));
    let facts = view.board().map_or_else(Vec::new, |board| headline(board, now));
    let mut spans = Vec::new();
    for (text, mark) in facts {
        if !spans.is_empty() {
            spans.push(Span::styled(" · ", faint()));
        }
        spans.push(Span::styled(text, style(mark)));
    }
    frame.render_widget(
        Paragraph::new(vec![Line::from(vec![title, fresh]), Line::from(spans)]),
        area,
    );
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, panels: &[Panel], chosen: usize) {
    let tab = |(number, panel): (usize, &Panel)| {
        let text = format!(
            " {} {} {}",
            number.saturating_add(1),
            panel.title,
            panel.rows.len()
        );
        let style = if number == chosen {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            faint()
        };
        Span::styled(text, style)
    };
    let tabs: Vec<_> = panels.iter().enumerate().map(tab).collect();
    frame.render_widget(Paragraph::new(Line::from(tabs)), area);
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, panel: &Panel, row: usize) {
    let head = Row::new(panel.head.iter().copied()).style(faint().add_modifier(Modifier::UNDERLINED));
    let cells = |row: &crate::panels::PanelRow| {
        let style = style(row.mark);
        Row::new(row.cells.iter().cloned().map(Cell::from).collect::<Vec<_>>()).style(style)
    };
    let table = Table::new(panel.rows.iter().map(cells), widths(panel, area.width))
        .header(head)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected((!panel.rows.is_empty()).then_some(row));
    frame.render_stateful_widget(table, area, &mut state);
    if panel.rows.is_empty() {
        let rows = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]);
        let [_, rest] = rows.areas(area);
        frame.render_widget(Paragraph::new("nothing").style(faint()), rest);
    }
}

/// Each column is as wide as its contents, and the last takes what is left. Where the window is narrow, the wide
/// columns give way.
fn widths(panel: &Panel, width: u16) -> Vec<Constraint> {
    let count = panel.head.len();
    let most = width / 3;
    let wide = |column: usize| {
        let cells = panel.rows.iter().filter_map(|row| row.cells.get(column));
        let head = panel.head.get(column).map_or(0, |head| head.chars().count());
        let widest = cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
            .max(head);
        u16::try_from(widest).unwrap_or(u16::MAX).min(most.max(4))
    };
    (0..count)
        .map(|column| {
            if column.saturating_add(1) == count {
                Constraint::Min(4)
            } else {
                Constraint::Length(wide(column))
            }
        })
        .collect()
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines = u16::try_from(HELP.len()).unwrap_or(u16::MAX).saturating_add(2);
    let (width, height) = (46.min(area.width), lines.min(area.height));
    let place = Rect {
        x: area.x.saturating_add(area.width.saturating_sub(width) / 2),
        y: area.y.saturating_add(area.height.saturating_sub(height) / 2),
        width,
        height,
    };
    let text: Vec<_> = HELP.iter().copied().map(Line::from).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(text).block(Block::bordered().title(" keys ")),
        place,
    );
}

/// Colours of the terminal's own palette: they fit dark and light screens.
fn style(mark: Mark) -> Style {
    match mark {
        Mark::Plain => Style::new(),
        Mark::Good => Style::new().fg(Color::Green),
        Mark::Busy => Style::new().fg(Color::Cyan),
        Mark::Bad => Style::new().fg(Color::Red),
        Mark::Past => faint(),
    }
}

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}
