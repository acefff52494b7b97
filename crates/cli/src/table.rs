//! Tables for people: columns that are as wide as what is in them.

use std::fmt;

use carrel_changes::EscapedLine;

/// The widest that a cell is shown.
const WIDEST: usize = 60;
/// What stands between two columns.
const GAP: &str = "  ";

/// Rows of cells below their titles.
#[derive(Clone, Debug)]
pub(crate) struct TextTable<const N: usize> {
    titles: [&'static str; N],
    rows: Vec<[String; N]>,
}

// === impl TextTable ===

impl<const N: usize> TextTable<N> {
    pub(crate) fn new(titles: [&'static str; N]) -> Self {
        Self { titles, rows: Vec::new() }
    }

    /// Adds a row. Whatever is in it stays on its line and cannot steer a terminal.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| shortened(&EscapedLine(&cell).to_string())));
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

/// The beginning of a long text, with a mark that there is more.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(WIDEST) {
        None => text.to_owned(),
        Some(_) => text.chars().take(WIDEST - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = TextTable::new(["NAME", "STATE", "COMMAND"]);
        table.row(["a".into(), "running".into(), "sh".into()]);
        table.row(["größer".into(), "".into(), "".into()]);
        assert_eq!(table.to_string(), "NAME    STATE    COMMAND\na       running  sh\ngrößer\n");
        assert_eq!(TextTable::new(["A", "B"]).to_string(), "A  B\n");
    }

    #[test]
    fn no_cell_leaves_its_line_or_takes_all_of_it() {
        let mut table = TextTable::new(["A"]);
        table.row(["x\u{1b}[2J\nerror: y".into()]);
        table.row(["z".repeat(61)]);
        table.row(["z".repeat(60)]);
        let expected = format!("A\nx\\x1b[2J\\x0aerror: y\n{}…\n{}\n", "z".repeat(59), "z".repeat(60));
        assert_eq!(table.to_string(), expected);
    }
}
