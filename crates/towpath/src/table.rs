//! Tables for people: columns as wide as their content, numbers aligned to the right.
#![forbid(unsafe_code)]

/// A table with a heading.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with this heading.
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Table {
        Table { rows: vec![heading.map(str::to_owned).to_vec()] }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Returns `true` if there is a heading and nothing else.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Formats the table as text, one line per row.
    pub(crate) fn to_text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| {
            row.get(column).map(|text| printable(text)).unwrap_or_default()
        };
        let width = |column| {
            self.rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0)
        };
        let is_number = |text: &str| {
            text == "-" || (!text.is_empty() && text.chars().all(|one| one.is_ascii_digit()))
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let right: Vec<bool> = (0..columns)
            .map(|column| {
                self.rows.len() > 1
                    && self.rows.iter().skip(1).all(|row| is_number(&cell(row, column)))
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for column in 0..columns {
                let (cell, width) = (cell(row, column), widths[column]);
                let gap = " ".repeat(width - cell.chars().count());
                line += &if right[column] { gap + &cell } else { cell + &gap };
                line += "  ";
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// Replaces control characters, so that an application's name cannot control the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '?' } else { one }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_steers_the_terminal() {
        let mut table = Table::new(["NAME", "PACKETS"]);
        assert!(table.is_empty());
        table.row(["wäb".into(), "7".into()]);
        table.row(["a\x1b[2Jb".into(), "123456789".into()]);
        assert_eq!(table.to_text(), "NAME      PACKETS\nwäb             7\na?[2Jb  123456789\n");
    }
}
