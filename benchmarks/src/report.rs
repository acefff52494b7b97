//! Prints and records the numbers.

use serde_json::{Value, json};

use crate::samples::Samples;

/// One measured number.
#[derive(Debug)]
pub(crate) struct Benchmark {
    /// The name of the measurement.
    name: String,
    /// The face of the product that was used.
    face: &'static str,
    /// The number.
    measured: MeasuredValue,
    /// Its unit, and that of the anchor.
    unit: &'static str,
    /// The anchor, if there is one.
    anchor: Option<(&'static str, MeasuredValue)>,
    /// The ratio, if the aim needs another than the plain one.
    ratio: Option<f64>,
    /// The aim of the specification, and whether it is met; none for a number that only informs.
    aim: Option<(&'static str, bool)>,
}

/// A number with the spread of single calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MeasuredValue {
    /// The number: the median of many calls.
    pub(crate) value: f64,
    /// The minimum and the 99th percentile, where calls were timed one by one.
    spread: Option<(f64, f64)>,
}

// === impl MeasuredValue ===

impl From<f64> for MeasuredValue {
    fn from(value: f64) -> Self {
        Self { value, spread: None }
    }
}

impl From<&Samples> for MeasuredValue {
    fn from(samples: &Samples) -> Self {
        Self { value: samples.median(), spread: Some((samples.least(), samples.p99())) }
    }
}

impl MeasuredValue {
    fn text(self, unit: &str) -> String {
        let spread = self.spread.map(|(least, p99)| format!(" ({} to {})", rounded(least), rounded(p99)));
        format!("{} {unit}{}", rounded(self.value), spread.unwrap_or_default())
    }

    fn object(self) -> serde_json::Map<String, Value> {
        let mut object = serde_json::Map::new();
        object.insert("value".to_owned(), json!(rounded(self.value)));
        if let Some((least, p99)) = self.spread {
            object.insert("min".to_owned(), json!(rounded(least)));
            object.insert("p99".to_owned(), json!(rounded(p99)));
        }
        object
    }
}

// === impl Benchmark ===

impl Benchmark {
    /// A number without an aim.
    pub(crate) fn new(
        name: impl Into<String>,
        face: &'static str,
        measured: impl Into<MeasuredValue>,
        unit: &'static str,
    ) -> Self {
        let measured = measured.into();
        Self { name: name.into(), face, measured, unit, anchor: None, ratio: None, aim: None }
    }

    /// Adds an anchor in the same unit; the ratio is that of this number to the anchor's.
    pub(crate) fn beside(mut self, name: &'static str, anchor: impl Into<MeasuredValue>) -> Self {
        let anchor = anchor.into();
        self.ratio = Some(self.measured.value / anchor.value);
        self.anchor = Some((name, anchor));
        self
    }

    /// Sets the ratio, if it is not the plain one.
    pub(crate) fn ratio(mut self, ratio: f64) -> Self {
        self.ratio = Some(ratio);
        self
    }

    /// Sets the aim of the specification, and whether it is met.
    pub(crate) fn aim(mut self, text: &'static str, met: bool) -> Self {
        self.aim = Some((text, met));
        self
    }

    fn object(&self) -> Value {
        let mut object = json!({"name": self.name, "face": self.face});
        if let Some(fields) = object.as_object_mut() {
            fields.append(&mut self.measured.object());
            fields.insert("unit".to_owned(), json!(self.unit));
            let anchor = self.anchor.map(|(name, measured)| {
                let mut anchor = serde_json::Map::from_iter([("name".to_owned(), json!(name))]);
                anchor.append(&mut measured.object());
                anchor
            });
            fields.insert("anchor".to_owned(), json!(anchor));
            fields.insert("ratio".to_owned(), json!(self.ratio.map(rounded)));
            fields.insert("aim".to_owned(), json!(self.aim.map(|(text, _)| text)));
            fields.insert("met".to_owned(), json!(self.aim.map(|(_, met)| met)));
        }
        object
    }

    fn row(&self) -> [String; 6] {
        let none = || "–".to_owned();
        [
            format!("{} ({})", self.name, self.face),
            self.measured.text(self.unit),
            self.anchor.map_or_else(none, |(name, measured)| format!("{name}: {}", measured.text(self.unit))),
            self.ratio.map_or_else(none, |ratio| format!("{ratio:.2}")),
            self.aim.map_or_else(none, |(text, _)| text.to_owned()),
            self.aim.map_or_else(none, |(_, met)| if met { "yes" } else { "NO" }.to_owned()),
        ]
    }
}

/// The record: what `scripts/specification.py` reads.
pub(crate) fn json(benchmarks: &[Benchmark]) -> String {
    let lines: Vec<Value> = benchmarks.iter().map(Benchmark::object).collect();
    format!("{:#}\n", json!({"benchmarks": lines}))
}

/// The table.
pub(crate) fn table(benchmarks: &[Benchmark]) -> String {
    let head = ["what", "measured", "anchor", "ratio", "aim", "met"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(benchmarks.iter().map(Benchmark::row)).collect();
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

/// Rounds to four significant digits.
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
        let record = json(&[Benchmark::new("n", "f", 1.0, "ns").beside("peer", 2.0)]);
        assert!(record.contains("\"met\": null") && record.contains("\"aim\": null"), "{record}");
        assert!(record.contains("\"ratio\": 0.5"), "{record}");
    }

    #[test]
    fn calls_that_were_timed_one_by_one_show_their_spread() {
        let line = Benchmark::new("n", "f", &Samples::of(vec![3.0, 1.0, 2.0]), "ms");
        assert_eq!(line.row()[1], "2 ms (1 to 3)");
        let record = json(&[line]);
        assert!(record.contains("\"min\": 1.0") && record.contains("\"p99\": 3.0"), "{record}");
    }
}
