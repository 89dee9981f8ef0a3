//! Results of the GPU benches: ratios with their bounds, and the paper's tables and figures; printed, and written as Markdown and as a page.

use std::fmt::Write;
use std::path::Path;

use comfy_table::Table as Printed;
use jiff::Timestamp;
use minijinja::{AutoEscape, Environment, context};
use rgaps::device::cuda::{Device, uuid_text};
use rgaps_command::output;
use serde::Serialize;

use super::{Setup, plot, print};
use crate::{Bound, Row};

/// Column titles, and the cells of each line.
type Cells = (Vec<String>, Vec<Vec<String>>);

/// A table of the paper with this run's figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Table {
    /// The table's number in the paper.
    pub(super) number: &'static str,
    pub(super) title: String,
    /// Column titles; the first column has the lines' names.
    pub(super) columns: Vec<String>,
    pub(super) lines: Vec<(String, Vec<f64>)>,
    pub(super) unit: &'static str,
}

/// A figure of the paper with this run's figures: bars in groups.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    /// The figure's number in the paper.
    pub(super) number: String,
    pub(super) title: String,
    /// What the groups stand for.
    pub(super) axis: &'static str,
    pub(super) groups: Vec<String>,
    /// Named bars, one value a group; fewer values if the last groups have none.
    pub(super) series: Vec<(String, Vec<f64>)>,
    pub(super) unit: &'static str,
}

/// The results of one bench.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Part {
    pub(super) rows: Vec<Row>,
    pub(super) tables: Vec<Table>,
    pub(super) figures: Vec<Figure>,
}

impl Part {
    pub(super) fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.tables.extend(other.tables);
        self.figures.extend(other.figures);
    }

    /// Prints it; a trial prints no times.
    pub(super) fn print(&self, is_trial: bool) {
        if is_trial {
            for row in &self.rows {
                output::line(format_args!("{}: {}, beside {}", row.bench, row.case, row.reference));
            }
        } else {
            print(&self.rows);
        }
        for table in &self.tables {
            output::line(format_args!("\nTable {}: {} ({})", table.number, table.title, table.unit));
            output::line(table.printed(is_trial));
        }
    }
}

impl Table {
    fn printed(&self, is_trial: bool) -> Printed {
        let mut printed = output::table([""; 0]);
        printed.set_header(&self.columns);
        for (name, values) in &self.lines {
            let values = values.iter().map(|value| if is_trial { "-".to_owned() } else { figure(*value) });
            printed.add_row([name.clone()].into_iter().chain(values));
        }
        printed
    }

    fn cells(&self) -> Cells {
        let line = |(name, values): &(String, Vec<f64>)| {
            [name.clone()].into_iter().chain(values.iter().map(|value| figure(*value))).collect()
        };
        (self.columns.clone(), self.lines.iter().map(line).collect())
    }
}

/// A number with at least three significant digits, and no spurious ones after them.
fn figure(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}")
    } else if value < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// The circumstances of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Circumstances {
    pub(super) date: String,
    device: String,
    driver: String,
    machine: String,
    command: String,
    commit: String,
    /// Cases left out for want of memory.
    left_out: Vec<String>,
}

impl Circumstances {
    pub(super) fn now(setup: &Setup, commit: &str) -> Self {
        let found = &setup.properties;
        let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let cuda = Device::driver_version().map_or_else(|why| why, |(major, minor)| format!("CUDA {major}.{minor}"));
        let driver = read("/sys/module/nvidia/version").unwrap_or_else(|| "of an unknown version".to_owned());
        let processor = read("/proc/cpuinfo").unwrap_or_default();
        let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Self {
            date: date(rgaps_os::clock::realtime_ns() / 1_000_000_000),
            device: format!(
                "{}, {}, compute {}.{}, {}",
                found.name,
                output::bytes(found.memory_bytes as f64),
                found.capability.0,
                found.capability.1,
                uuid_text(found.id)
            ),
            driver: format!("{driver}, {cuda}"),
            machine: format!("{}, {cores} cores, Linux {kernel}", processor.unwrap_or("an unknown processor")),
            command: std::env::args().skip(1).fold("rgaps".to_owned(), |all, argument| format!("{all} {argument}")),
            commit: commit.to_owned(),
            left_out: setup.left_out.clone(),
        }
    }

    fn lines(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let run = [
            ("date", &self.date),
            ("device", &self.device),
            ("driver", &self.driver),
            ("machine", &self.machine),
            ("commit", &self.commit),
            ("command", &self.command),
        ];
        run.into_iter()
            .chain(self.left_out.iter().map(|why| ("left out", why)))
            .map(|(name, text)| (name, text.as_str()))
    }
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) circumstances: Circumstances,
    /// The benches that failed, and why.
    pub(super) failures: Vec<String>,
    pub(super) part: Part,
}

impl Report {
    pub(super) fn new(circumstances: Circumstances) -> Self {
        Self { circumstances, failures: Vec::new(), part: Part::default() }
    }

    /// The text above the tables.
    fn lines(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.circumstances.lines().chain(self.failures.iter().map(|why| ("FAILED", why.as_str())))
    }

    /// Writes `gpu-bench.md`, a section of docs/gpu-runs.md, and `gpu-bench.html` into a folder, which is created if needed.
    pub(super) fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("gpu-bench.md"), self.markdown())?;
        std::fs::write(folder.join("gpu-bench.html"), self.page()?)
    }

    fn ratios(&self) -> Cells {
        let columns = ["bench", "case", "ours", "reference", "", "ratio", "bound"].map(str::to_owned).to_vec();
        let line = |row: &Row| {
            let bound = match row.bound {
                None => String::new(),
                Some(Bound::AtMost(bound)) => format!("at most {bound}"),
                Some(Bound::AtLeast(bound)) => format!("at least {bound}"),
            };
            let missed = if row.holds() { "" } else { ", MISSED" };
            vec![
                row.bench.to_owned(),
                row.case.clone(),
                format!("{} {}", figure(row.ours), row.unit),
                row.reference.clone(),
                figure(row.theirs),
                format!("{:.3}", row.ratio),
                format!("{bound}{missed}"),
            ]
        };
        (columns, self.part.rows.iter().map(line).collect())
    }

    /// Title and cells of each table.
    fn all_tables(&self) -> Vec<(String, Cells)> {
        let ratios = ("Ratios, each of runs that took turns".to_owned(), self.ratios());
        let title = |table: &Table| format!("Table {}: {} ({})", table.number, table.title, table.unit);
        [ratios].into_iter().chain(self.part.tables.iter().map(|table| (title(table), table.cells()))).collect()
    }

    fn markdown(&self) -> String {
        let Circumstances { date, device, .. } = &self.circumstances;
        let mut text = format!("## {date}: {}\n\n", device.split(',').next().unwrap_or(device));
        for (name, value) in self.lines() {
            let _ = writeln!(text, "* {name}: {value}");
        }
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        for (title, (columns, lines)) in self.all_tables() {
            let _ = write!(text, "\n### {title}\n\n{}{}", line(&columns), line(&vec!["---".to_owned(); columns.len()]));
            lines.iter().for_each(|cells| text.push_str(&line(cells)));
        }
        text
    }

    fn page(&self) -> std::io::Result<String> {
        let tables = self.all_tables().into_iter().map(|(title, (columns, lines))| context! { title, columns, lines });
        let figures = self.part.figures.iter().map(|figure| {
            let title = format!("Figure {}: {}", figure.number, figure.title);
            plot::bars(figure).map(|drawn| context! { title, drawn })
        });
        let figures = figures.collect::<Result<Vec<_>, _>>().map_err(std::io::Error::other)?;
        let page = context! {
            title => format!("RGAPS on {}", self.circumstances.device),
            notes => self.lines().collect::<Vec<_>>(),
            tables => tables.collect::<Vec<_>>(),
            figures,
        };
        let mut pages = Environment::new();
        pages.set_auto_escape_callback(|_| AutoEscape::Html);
        pages.render_str(include_str!("report.html"), page).map_err(std::io::Error::other)
    }
}

/// The UTC date of a time in seconds since 1970.
fn date(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.strftime("%Y-%m-%d").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let rows = vec![Row {
            bench: "path1",
            case: "copy <4 MiB>".to_owned(),
            reference: "bare".to_owned(),
            unit: "GB/s",
            ours: 48.0,
            theirs: 50.0,
            ratio: 0.96,
            interval: None,
            bound: Some(Bound::AtLeast(0.97)),
        }];
        let tables = vec![Table {
            number: "4.2",
            title: "path 1".to_owned(),
            columns: ["size", "T1", "T2"].map(str::to_owned).to_vec(),
            lines: vec![("4 MiB".to_owned(), vec![0.512, 224.3])],
            unit: "us",
        }];
        let figures = vec![Figure {
            number: "4.6 (a)".to_owned(),
            title: "total".to_owned(),
            axis: "subscribers",
            groups: vec!["1".to_owned(), "8".to_owned()],
            series: vec![("RGAPS".to_owned(), vec![754.0, 759.0]), ("baseline".to_owned(), vec![5402.0])],
            unit: "us",
        }];
        let circumstances = Circumstances {
            date: date(0),
            device: "A GPU, 24 GB".to_owned(),
            driver: "1".to_owned(),
            machine: "a machine".to_owned(),
            command: "rgaps bench".to_owned(),
            commit: "abc".to_owned(),
            left_out: vec!["messages of 1 GiB".to_owned()],
        };
        let failures = vec!["bench e2e: no answer".to_owned()];
        Report { circumstances, failures, part: Part { rows, tables, figures } }
    }

    #[test]
    fn a_section_has_the_circumstances_and_every_table() {
        let text = report().markdown();
        assert!(text.starts_with("## 1970-01-01: A GPU\n\n* date: 1970-01-01\n"), "{text}");
        assert!(text.contains("\n* left out: messages of 1 GiB\n* FAILED: bench e2e: no answer\n"), "{text}");
        assert!(text.contains("| path1 | copy <4 MiB> | 48.0 GB/s | bare | 50.0 | 0.960 | at least 0.97, MISSED |"));
        assert!(
            text.contains(
                "### Table 4.2: path 1 (us)\n\n| size | T1 | T2 |\n| --- | --- | --- |\n| 4 MiB | 0.51 | 224 |"
            )
        );
    }

    #[test]
    fn a_page_is_one_file_with_its_figures_and_loads_nothing_else() {
        let page = report().page().unwrap();
        assert!(page.contains("<td>copy &lt;4 MiB&gt;</td>") && page.contains("Figure 4.6 (a): total"));
        assert_eq!(page.matches("<svg").count(), 1);
        for outside in ["<script", "<link", "src=", "@import", "href="] {
            assert!(!page.contains(outside), "{outside}");
        }
        let folder = rgaps_testing::RuntimeDir::new("report").unwrap();
        report().write(&folder.path().join("new")).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join("new/gpu-bench.html")).unwrap(), page);
    }

    #[test]
    fn a_trial_shows_no_time() {
        let report = report();
        let table = report.part.tables[0].printed(true).to_string();
        assert!(table.contains("4 MiB") && !table.contains("224"), "{table}");
        assert!(report.part.tables[0].printed(false).to_string().contains("224"));
    }
}
