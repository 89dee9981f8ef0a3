//! The report of a run: for people a page with plots (`index.html`), Markdown (`report.md`) and a file for each figure (`figure-1.svg`), for programs
//! `report.json`. The host's and the GPU's benches have the same one.

mod circumstances;
mod plot;

use std::fmt::Write;
use std::path::Path;

use minijinja::{AutoEscape, Environment, Value, context};
use rgaps_command::output;
use serde::{Deserialize, Serialize};

pub(crate) use circumstances::{Circumstances, Gpu};

use crate::results::{Cells, Figure, Part, Shape, Table, figure};
use crate::row::Row;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) circumstances: Circumstances,
    /// The benches that failed, and why.
    pub(crate) failures: Vec<String>,
    #[serde(flatten)]
    pub(crate) part: Part,
}

/// Prints the results of a bench.
pub(crate) fn print(part: &Part) {
    if !part.rows.is_empty() {
        let (columns, lines) = ratios(&part.rows, false);
        let mut printed = output::table([""; 0]);
        printed.set_header(columns);
        printed.add_rows(lines);
        output::line(printed);
    }
    for table in &part.tables {
        let (columns, lines) = table.cells();
        print_table(table, columns, lines);
    }
    for why in &part.left_out {
        output::line(format_args!("left out: {why}"));
    }
}

/// Prints what a trial did, without times.
pub(crate) fn print_trial(part: &Part) {
    for row in &part.rows {
        output::line(format_args!("{}: {}, beside {}", row.bench, row.case, row.reference));
    }
    for table in &part.tables {
        let (columns, lines) = table.cells();
        let without_times = |line: Vec<String>| {
            let count = line.len() - 1;
            line.into_iter().take(1).chain(std::iter::repeat_n("-".to_owned(), count)).collect()
        };
        print_table(table, columns, lines.into_iter().map(without_times).collect());
    }
}

fn print_table(table: &Table, columns: Vec<String>, lines: Vec<Vec<String>>) {
    let mut printed = output::table([""; 0]);
    printed.set_header(columns);
    printed.add_rows(lines);
    output::line(format_args!("\n{}", table.heading()));
    output::line(printed);
}

/// The rows as a table; the bench is the first column, or left out where it is the heading.
fn ratios(rows: &[Row], is_below_its_bench: bool) -> Cells {
    let all =
        ["bench", "case", "ours", "beside", "", "ratio", "95 %", "run before", "better", "bound"].map(str::to_owned);
    let columns = all[usize::from(is_below_its_bench)..].to_vec();
    let line = |row: &Row| {
        let mut line = vec![row.bench.to_string(), row.case.clone()];
        match (row.medians, &row.missing) {
            (Some(found), _) => {
                let spread = |which: usize| {
                    found.quartiles.map_or(String::new(), |all| format!(" ({})", range(all[which], figure)))
                };
                line.push(format!("{} {}{}", figure(found.ours), row.unit, spread(0)));
                line.push(row.reference.clone());
                line.push(format!("{}{}", figure(found.theirs), spread(1)));
                line.push(format!("{:.3}", found.ratio));
                line.push(found.interval.map_or(String::new(), |ends| range(ends, |end| format!("{end:.2}"))));
            }
            (None, why) => {
                let why = why.as_deref().unwrap_or("no figure");
                line.extend([
                    String::new(),
                    row.reference.clone(),
                    format!("MISSING: {why}"),
                    String::new(),
                    String::new(),
                ]);
            }
        }
        line.push(row.agreement().map_or(String::new(), |(before, agrees)| {
            let text = if agrees { "" } else { ", NOT RESOLVED" };
            format!("{before:.3}{text}")
        }));
        line.push(row.better().to_owned());
        let missed = if row.holds() { "" } else { ", MISSED" };
        line.push(row.bound.map_or(String::new(), |bound| format!("{bound}{missed}")));
        line.split_off(usize::from(is_below_its_bench))
    };
    (columns, rows.iter().map(line).collect())
}

fn range([least, most]: [f64; 2], text: impl Fn(f64) -> String) -> String {
    format!("{} to {}", text(least), text(most))
}

impl Report {
    pub(crate) fn new(circumstances: Circumstances) -> Self {
        Self { circumstances, failures: Vec::new(), part: Part::default() }
    }

    /// The rows of a run of this commit whose report is in a folder.
    pub(crate) fn rows_before(&self, folder: &Path) -> Vec<Row> {
        let before = std::fs::read(folder.join("report.json")).ok();
        let before = before.and_then(|text| serde_json::from_slice::<Self>(&text).ok());
        let is_same = |before: &Self| before.circumstances.commit == self.circumstances.commit;
        before.filter(is_same).map_or(Vec::new(), |before| before.part.rows)
    }

    /// Writes the files into a folder, which is created if needed.
    pub(crate) fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let templates = templates()?;
        std::fs::write(folder.join("index.html"), self.page(&templates)?)?;
        for (number, figure) in (1..).zip(&self.part.figures) {
            let ((width, height), drawn) = (plot::SIZE, drawn(figure)?);
            let alone = templates
                .get_template("figure.svg")
                .and_then(|figure| figure.render(context! { width, height, drawn }));
            std::fs::write(folder.join(format!("figure-{number}.svg")), alone.map_err(std::io::Error::other)?)?;
        }
        std::fs::write(folder.join("report.md"), self.markdown())?;
        std::fs::write(folder.join("report.json"), serde_json::to_string_pretty(self)? + "\n")
    }

    /// The text above the tables: names and values.
    fn notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = self.circumstances.notes();
        notes.extend(self.part.left_out.iter().map(|why| ("left out", why.clone())));
        notes.extend(self.failures.iter().map(|why| ("FAILED", why.clone())));
        notes
    }

    /// The rows of each bench, in the order of the run.
    fn by_bench(&self) -> Vec<(&str, Vec<Row>)> {
        let mut benches: Vec<(&str, Vec<Row>)> = Vec::new();
        for row in &self.part.rows {
            match benches.iter_mut().find(|(name, _)| *name == row.bench) {
                Some((_, rows)) => rows.push(row.clone()),
                None => benches.push((&row.bench, vec![row.clone()])),
            }
        }
        benches
    }

    /// A section of a page such as docs/gpu-runs.md.
    fn markdown(&self) -> String {
        let Circumstances { date, .. } = &self.circumstances;
        let mut text = format!("## {date}: {}\n\n", self.circumstances.subject());
        for (name, value) in self.notes() {
            let _ = writeln!(text, "* {name}: {}", in_line(&value));
        }
        let ratios =
            ("Ratios, each of runs that took turns; medians (quartiles)".to_owned(), ratios(&self.part.rows, false));
        let tables = self.part.tables.iter().map(|table| (table.heading(), table.cells()));
        for (heading, (columns, lines)) in [ratios].into_iter().chain(tables) {
            let _ =
                write!(text, "\n### {heading}\n\n{}{}", line(&columns), line(&vec!["---".to_owned(); columns.len()]));
            lines.iter().for_each(|cells| text.push_str(&line(cells)));
        }
        text
    }

    fn page(&self, templates: &Environment<'_>) -> std::io::Result<String> {
        let mut benches = Vec::new();
        for (name, rows) in self.by_bench() {
            let (columns, cells) = ratios(&rows, true);
            let lines: Vec<Value> = rows
                .iter()
                .zip(cells)
                .map(|(row, cells)| {
                    let (command, holds, missing) = (&row.command, row.holds(), row.missing.is_some());
                    context! { cells, command, holds, missing }
                })
                .collect();
            let drawn = plot::ratios(&rows).map_err(std::io::Error::other)?;
            benches.push(context! { name, columns, lines, drawn });
        }
        let tables = self.part.tables.iter().map(|table| {
            let ((columns, lines), title) = (table.cells(), table.heading());
            context! { title, columns, lines }
        });
        let figures = self
            .part
            .figures
            .iter()
            .map(|figure| drawn(figure).map(|drawn| context! { title => figure.heading(), drawn }));
        let figures = figures.collect::<std::io::Result<Vec<_>>>()?;
        let page = context! {
            title => format!("RGAPS on {}", self.circumstances.subject()),
            notes => self.notes(),
            versions => &self.circumstances.versions,
            benches,
            tables => tables.collect::<Vec<_>>(),
            figures,
        };
        templates.get_template("page.html").and_then(|template| template.render(page)).map_err(std::io::Error::other)
    }
}

/// The templates; they escape what they are given.
fn templates() -> std::io::Result<Environment<'static>> {
    let mut templates = Environment::new();
    templates.set_auto_escape_callback(|_| AutoEscape::Html);
    for (name, text) in [
        ("page.html", include_str!("report/page.html")),
        ("figure.svg", include_str!("report/figure.svg")),
        ("colours.css", include_str!("report/colours.css")),
        ("plot.css", include_str!("report/plot.css")),
    ] {
        templates.add_template(name, text).map_err(std::io::Error::other)?;
    }
    Ok(templates)
}

fn drawn(figure: &Figure) -> std::io::Result<String> {
    let drawn = match figure.shape {
        Shape::Bars => plot::bars(figure),
        Shape::Points => plot::points(figure),
    };
    drawn.map_err(std::io::Error::other)
}

/// A line of a table in Markdown.
fn line(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| in_line(cell).replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// A text that stays on its line, and in which nothing is a tag.
fn in_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Bound;

    const HOSTILE: &str = "</td><script src=\"http://example.org/x.js\">alert('&')</script>|\nnext";

    fn report() -> Report {
        let row =
            |bench, case: &str, figures, bound| Row::of((bench, case.to_owned()), "bare", "GB/s", figures, Some(bound));
        let mut rows = vec![
            row("path1", "copy <4 MiB>", (48.0, 50.0), Bound::AtLeast(0.97)),
            row("local", HOSTILE, (3.0, 2.0), Bound::AtMost(2.0)),
            Row::missing(("local", "4 MiB read N=1".to_owned()), "zenoh SHM", "us", "there is no rgaps-peers"),
        ];
        rows[0].before = Some(0.85);
        rows[1].before = Some(1.4);
        for row in &mut rows {
            row.command = format!("rgaps bench {} --only '{}'", row.bench, row.name());
        }
        let tables = vec![Table {
            number: Some("4.2".into()),
            title: "path 1".to_owned(),
            columns: ["size", "T1", "T2"].map(str::to_owned).to_vec(),
            lines: vec![("4 MiB".to_owned(), vec![0.512.into(), "needs a GPU".into()])],
            unit: "us".into(),
        }];
        let bars = Figure {
            number: Some("4.6 (a)".to_owned()),
            title: "total".to_owned(),
            axis: "subscribers".into(),
            groups: vec!["1".to_owned(), HOSTILE.to_owned()],
            series: vec![("RGAPS".to_owned(), vec![Some(754.0), None]), (HOSTILE.to_owned(), vec![Some(5402.0)])],
            unit: "us".into(),
            shape: Shape::Bars,
        };
        let points = Figure { number: None, title: "latency by size".to_owned(), shape: Shape::Points, ..bars.clone() };
        let gpu = Gpu { device: "A GPU, 24 GB".to_owned(), driver: "1".to_owned() };
        let mut circumstances = Circumstances::now("abc", Some(gpu));
        circumstances.date = circumstances::date(0);
        let left_out = vec!["messages of 1 GiB".to_owned()];
        let part = Part { rows, tables, figures: vec![bars, points], left_out };
        Report { circumstances, failures: vec!["bench e2e: no answer".to_owned()], part }
    }

    fn page(report: &Report) -> String {
        report.page(&templates().unwrap()).unwrap()
    }

    #[test]
    fn a_section_has_the_circumstances_and_every_table() {
        let text = report().markdown();
        assert!(text.starts_with("## 1970-01-01: A GPU\n\n* date: 1970-01-01\n* machine: "), "{text}");
        assert!(text.contains("\n* left out: messages of 1 GiB\n* FAILED: bench e2e: no answer\n"), "{text}");
        let ratio = "| path1 | copy &lt;4 MiB> | 48.0 GB/s | bare | 50.0 | 0.960 |  | 0.850, NOT RESOLVED | higher | at least 0.97, MISSED |\n";
        let missing =
            "| local | 4 MiB read N=1 |  | zenoh SHM | MISSING: there is no rgaps-peers |  |  |  | lower |  |\n";
        let table = "### Table 4.2: path 1 (us, lower is better)\n\n| size | T1 | T2 |\n| --- | --- | --- |\n| 4 MiB | 0.512 | needs a GPU |\n";
        for part in [ratio, missing, table] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("<script"), "{text}");
    }

    #[test]
    fn a_page_has_each_case_with_its_command_and_each_figure() {
        let page = page(&report());
        for part in [
            "<td>copy &lt;4 MiB&gt;</td>",
            "<td>4 MiB read N=1</td>",
            "<td>zenoh SHM</td><td>MISSING: there is no rgaps-peers</td>",
            "<code>rgaps bench path1 --only &#x27;copy &lt;4 MiB&gt; beside bare&#x27;</code>",
            "Figure 4.6 (a): total",
            "latency by size",
            "Table 4.2: path 1 (us, lower is better)",
            "<td>0.850, NOT RESOLVED</td><td>higher</td><td>at least 0.97, MISSED</td>",
            "<td>1.400</td><td>higher</td>",
            "prefers-color-scheme: dark",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        // Two figures, and the ratios of two benches.
        assert_eq!(page.matches("<svg").count(), 4);
    }

    #[test]
    fn a_page_is_one_file_that_loads_nothing_and_runs_nothing() {
        let page = page(&report());
        let tags = page.split('<').skip(1).filter_map(|rest| rest.split('>').next());
        for tag in tags {
            let loads = ["script", "link", "iframe", "img", "image", "use"].iter().any(|name| tag.starts_with(name));
            assert!(!loads && !tag.contains("src=") && !tag.contains("href=") && !tag.contains(" on"), "<{tag}>");
        }
        assert!(!page.contains("@import") && !page.contains("url("), "{page}");
        // Escaped by the template in a cell, and by the plot in a legend.
        assert!(page.matches("&lt;script src=").count() >= 4, "{page}");
    }

    #[test]
    fn report_json_reads_back_as_the_report_that_was_written() {
        let folder = rgaps_testing::RuntimeDir::new("report").unwrap();
        let (folder, report) = (folder.path().join("new"), report());
        report.write(&folder).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&read("report.json")).unwrap(), report);
        assert_eq!((read("index.html"), read("report.md")), (page(&report), report.markdown()));
        for name in ["figure-1.svg", "figure-2.svg"] {
            assert!(read(name).contains("prefers-color-scheme: dark") && read(name).contains("&lt;script"), "{name}");
        }
        let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        let row = &json["rows"][0];
        assert_eq!((&row["ours"], &row["bound"]["at_least"]), (&48.0.into(), &0.97.into()), "{row}");
        assert_eq!(json["rows"][2]["missing"], "there is no rgaps-peers");
        assert!(json["circumstances"]["machine"]["memory_bytes"].as_u64().unwrap() > 0);
        // The next run finds these rows, if it is of the same commit.
        assert_eq!(report.rows_before(&folder), report.part.rows);
        assert_eq!(Report::new(Circumstances::now("def", None)).rows_before(&folder), []);
        assert_eq!(report.rows_before(&folder.join("none")), []);
    }

    #[test]
    fn figures_that_are_not_above_0_are_missing_with_the_reason() {
        let row = |figures| Row::of(("e2e", "CPU".to_owned()), "bare", "s/GB", figures, Some(Bound::AtMost(1.15)));
        let rows = vec![row((0.0, 0.0)), row((0.2, 0.0)), row((f64::NAN, 0.1)), row((0.0, 0.1)), row((-0.1, 0.1))];
        let part = Part { rows, ..Part::default() };
        let report = Report { circumstances: Circumstances::now("abc", None), failures: Vec::new(), part };
        assert!(report.markdown().contains("MISSING: 0.2 and 0 s/GB are no figures above 0"), "{}", report.markdown());
        assert!(report.part.rows.iter().all(|row| row.medians.is_none() && row.holds()));
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
