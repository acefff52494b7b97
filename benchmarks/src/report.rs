//! The numbers, for people and for the record.

use serde_json::{Value, json};

/// One measured number.
#[derive(Debug)]
pub(crate) struct Benchmark {
    /// What was measured.
    pub(crate) name: String,
    /// Through which face of the product.
    pub(crate) face: &'static str,
    /// The number.
    pub(crate) value: f64,
    /// Its unit, and that of the anchor.
    pub(crate) unit: &'static str,
    /// What was measured beside it.
    pub(crate) anchor: Anchor,
    /// How the two compare, as the aim has it.
    pub(crate) ratio: f64,
    /// What the specification asks for, and whether that is so; nothing for a number that only informs.
    pub(crate) aim: Option<Aim>,
}

/// The thing beside which a number means something on any machine.
#[derive(Debug)]
pub(crate) struct Anchor {
    /// What it is.
    pub(crate) name: &'static str,
    /// Its number.
    pub(crate) value: f64,
}

/// What the specification asks for.
#[derive(Debug)]
pub(crate) struct Aim {
    /// In words.
    pub(crate) text: &'static str,
    /// Whether it is so.
    pub(crate) met: bool,
}

/// The record: what `scripts/specification.py` reads.
pub(crate) fn json(benchmarks: &[Benchmark]) -> String {
    let lines: Vec<Value> = benchmarks
        .iter()
        .map(|line| {
            json!({
                "name": line.name,
                "face": line.face,
                "value": rounded(line.value),
                "unit": line.unit,
                "anchor": {"name": line.anchor.name, "value": rounded(line.anchor.value)},
                "ratio": rounded(line.ratio),
                "aim": line.aim.as_ref().map(|aim| aim.text),
                "met": line.aim.as_ref().map(|aim| aim.met),
            })
        })
        .collect();
    format!("{:#}\n", json!({"benchmarks": lines}))
}

/// The table.
pub(crate) fn table(benchmarks: &[Benchmark]) -> String {
    let head = ["what", "measured", "anchor", "ratio", "aim", "met"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(benchmarks.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row(line: &Benchmark) -> [String; 6] {
    let (aim, met) = match &line.aim {
        Some(aim) => (aim.text, if aim.met { "yes" } else { "NO" }),
        None => ("–", "–"),
    };
    [
        format!("{} ({})", line.name, line.face),
        format!("{} {}", rounded(line.value), line.unit),
        format!("{}: {} {}", line.anchor.name, rounded(line.anchor.value), line.unit),
        format!("{:.2}", line.ratio),
        aim.to_owned(),
        met.to_owned(),
    ]
}

/// Four significant digits: more than a benchmark can mean, and few enough to read.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let scale = 10f64.powi(digits.max(0));
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_four_digits() {
        assert_eq!([0.123_456, 12.345_6, 123_456.7, 0.0].map(rounded), [0.1235, 12.35, 123_457.0, 0.0]);
    }

    #[test]
    fn a_number_without_an_aim_is_neither_met_nor_missed() {
        let anchor = Anchor { name: "peer", value: 2.0 };
        let line = Benchmark { name: "n".to_owned(), face: "f", value: 1.0, unit: "ns", anchor, ratio: 2.0, aim: None };
        let record = json(&[line]);
        assert!(record.contains("\"met\": null") && record.contains("\"aim\": null"), "{record}");
    }
}
