//! Text tables with aligned columns.

use std::fmt;

use carrel_changes::EscapedLine;

/// The maximum width of a cell.
const MAX_WIDTH: usize = 60;
/// The separator of columns.
const GAP: &str = "  ";

/// Rows of cells below column titles.
#[derive(Clone, Debug)]
pub(crate) struct TextTable<const N: usize> {
    titles: [&'static str; N],
    rows: Vec<[String; N]>,
}

/// A number with its noun.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

// === impl TextTable ===

impl<const N: usize> TextTable<N> {
    pub(crate) fn new(titles: [&'static str; N]) -> Self {
        Self { titles, rows: Vec::new() }
    }

    /// Adds a row. Control characters in cells are escaped.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| truncated(&EscapedLine(&cell).to_string())));
    }
}

impl<const N: usize> fmt::Display for TextTable<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = self.titles.map(str::to_owned);
        let lines = || std::iter::once(&titles).chain(&self.rows);
        let mut widths = [0; N];
        for line in lines() {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for line in lines() {
            let mut text = String::new();
            for (cell, width) in line.iter().zip(widths) {
                text.push_str(&format!("{cell:<width$}{GAP}"));
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Truncates long text with an ellipsis.
fn truncated(text: &str) -> String {
    match text.char_indices().nth(MAX_WIDTH) {
        None => text.to_owned(),
        Some(_) => text.chars().take(MAX_WIDTH - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_contents() {
        let mut table = TextTable::new(["NAME", "STATE", "COMMAND"]);
        table.row(["a".into(), "running".into(), "sh".into()]);
        table.row(["größer".into(), "".into(), "".into()]);
        assert_eq!(table.to_string(), "NAME    STATE    COMMAND\na       running  sh\ngrößer\n");
        assert_eq!(TextTable::new(["A", "B"]).to_string(), "A  B\n");
    }

    #[test]
    fn one_thing_is_singular() {
        let shown = [0, 1, 2].map(|count| counted(count, "sandbox", "sandboxes"));
        assert_eq!(shown, ["0 sandboxes", "1 sandbox", "2 sandboxes"]);
    }

    #[test]
    fn a_cell_is_escaped_and_truncated() {
        let mut table = TextTable::new(["A"]);
        table.row(["x\u{1b}[2J\nerror: y".into()]);
        table.row(["z".repeat(61)]);
        table.row(["z".repeat(60)]);
        let expected = format!("A\nx\\x1b[2J\\x0aerror: y\n{}…\n{}\n", "z".repeat(59), "z".repeat(60));
        assert_eq!(table.to_string(), expected);
    }
}
