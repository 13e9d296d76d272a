//! Comma-separated values (RFC 4180).

use crate::report::{Length, Report};

/// One line of fields; those with commas, quotes or line ends are quoted.
pub(crate) fn line<'a>(fields: impl IntoIterator<Item = &'a str>) -> String {
    let fields: Vec<_> = fields.into_iter().map(field).collect();
    fields.join(",") + "\r\n"
}

fn field(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A report's rows, each with where and when it was measured.
pub(crate) fn report(report: &Report) -> String {
    let mut text = line([
        "experiment",
        "part",
        "name",
        "parameters",
        "median",
        "unit",
        "lowest",
        "highest",
        "samples",
        "at_least",
        "at_most",
        "date",
        "commit",
        "kernel",
        "cpu",
        "cores",
        "settings",
    ]);
    let settings = report.settings.map_or("", Length::name);
    let limit = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for (part, rows) in
        [("rows", &report.rows), ("context", &report.context), ("limits", &report.limits)]
    {
        for row in rows {
            let parameters: Vec<_> =
                row.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
            text += &line([
                report.experiment.as_str(),
                part,
                &row.name,
                &parameters.join(";"),
                &row.value.to_string(),
                &row.unit,
                &row.spread[0].to_string(),
                &row.spread[1].to_string(),
                &row.samples.to_string(),
                &limit(row.at_least),
                &limit(row.at_most),
                &report.date,
                &report.commit,
                &report.machine.kernel,
                &report.machine.cpu,
                &report.machine.core_map,
                settings,
            ]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    #[test]
    fn every_row_is_a_line_of_as_many_fields() {
        let mut one = Report::new("switch", Length::Normal).unwrap();
        one.machine.cpu = "plain".into();
        one.machine.core_map = "0:0".into();
        one.rows = vec![Row::new("a", &[("n", 1.0), ("m", 2.0)], "us", &[3.0]).at_most(4.0)];
        one.context = vec![Row::new("b", &[], "ratio", &[0.5, 1.5])];
        let text = report(&one);
        let lines: Vec<_> = text.split("\r\n").collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with("switch,rows,a,m=2;n=1,3,us,3,3,1,,4,"), "{text}");
        assert!(lines[2].starts_with("switch,context,b,,1,ratio,0.5,1.5,2,,,"), "{text}");
        for line in &lines[..3] {
            assert_eq!(line.matches(',').count(), 16, "{line}");
        }
        assert!(lines[0].ends_with(",settings") && lines[1].ends_with(",normal"), "{text}");
    }
}
