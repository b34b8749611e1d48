//! How answers are printed.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Context as _;
use serde_json::Value;
use sluicegate_core::noun::Nano;

use crate::store::noun::is_invisible;

/// How answers are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Output {
    #[default]
    Table,
    Json,
}

/// A heading and how its cell is found in a row.
pub(super) type Column = (&'static str, fn(&Value) -> String);

impl Output {
    /// Prints rows as a table of `columns`, or all of them as JSON.
    pub fn rows(self, rows: &[Value], columns: &[Column]) -> anyhow::Result<()> {
        print(&match self {
            Self::Json => json(&Value::from(rows.to_vec())),
            Self::Table => table(rows, columns),
        })
    }
}

/// A value as JSON, for people and programs.
pub(super) fn json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// To standard output; a reader that went away (`| head`) is no error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    match write(text) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context(UNWRITTEN),
    }
}

/// To standard output, what is shown this once. A reader that went away has lost it, which is an error too; `lost` says what
/// to do then.
pub(super) fn print_once(text: &str, lost: &str) -> anyhow::Result<()> {
    write(text).map_err(|error| anyhow::anyhow!("{UNWRITTEN}: {error}; {lost}"))
}

const UNWRITTEN: &str = "cannot write to standard output";

fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// To standard error, a line beside the output. Where nobody can read it, there is nobody to tell.
pub(super) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn table(rows: &[Value], columns: &[Column]) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect()).collect();
    let width = |i: usize, heading: &str| {
        cells.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).fold(heading.len(), usize::max)
    };
    let widths: Vec<usize> = columns.iter().enumerate().map(|(i, (heading, _))| width(i, heading)).collect();
    let headings = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let mut out = String::new();
    for row in std::iter::once(&headings).chain(&cells) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A field as a cell: `-` where there is nothing.
pub(super) fn text(row: &Value, field: &str) -> String {
    match row.get(field) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => visible(text),
        Some(Value::Array(items)) if items.is_empty() => "-".to_owned(),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().map_or_else(|| item.to_string(), visible))
            .collect::<Vec<_>>()
            .join(","),
        Some(other) => other.to_string(),
    }
}

/// What commands a terminal or hides in it is written out: a model's name in the ledger is what some client sent.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Nano-dollars as dollars.
pub(super) fn dollars(row: &Value, field: &str) -> String {
    match row.get(field).and_then(Value::as_i64) {
        Some(nano) => format!("${}", Nano(nano)),
        None => "unpriced".to_owned(),
    }
}

/// Microseconds as milliseconds.
pub(super) fn millis(row: &Value, field: &str) -> String {
    match row.get(field).and_then(Value::as_i64) {
        Some(us) => format!("{}.{}ms", us / 1000, us % 1000 / 100),
        None => "-".to_owned(),
    }
}

/// The sum of fields.
pub(super) fn sum(row: &Value, fields: &[&str]) -> String {
    fields.iter().filter_map(|field| row.get(field)?.as_i64()).sum::<i64>().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_is_as_wide_as_its_widest_cell() {
        let rows = [json!({"a": "long cell", "n": 1_500_000_000}), json!({"b": null})];
        let columns: [Column; 2] = [("A", |r| text(r, "a")), ("COST", |r| dollars(r, "n"))];
        assert_eq!(table(&rows, &columns), "A          COST\nlong cell  $1.50\n-          unpriced\n");
        assert_eq!(millis(&json!({"x": 12_340}), "x"), "12.3ms");
    }

    #[test]
    fn a_cell_commands_no_terminal() {
        let cell = text(&json!({"model": "a\u{1b}[2Jb\n\u{202e}c é"}), "model");
        assert_eq!(cell, "a\\u{1b}[2Jb\\u{a}\\u{202e}c é");
    }
}
