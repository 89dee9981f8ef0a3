//! Tables and figures in the RGAPS paper's layout: the paper's values and the hardware that they were measured on, and ours below or beside them.
//!
//! `numbers` has the paper's values. Ours come from the benches; where there is no GPU, a cell that needs one says so.

mod numbers;

pub(crate) use numbers::{FIGURE_3_9, FIGURE_4_2, MACHINES};

use numbers::{
    COPY_COLUMNS, FIGURE_4_1, FIGURE_4_6, HARDWARE, Kind, PINNED_SPEEDUP, PaperTable, PaperValue, SPREAD_OF_EIGHT,
    TABLE_4_2, TABLE_4_3, TABLE_4_4, TABLE_4_5,
};

use crate::results::{Cell, Figure, Part, Shape, Table, figure};

/// The text of our cells where there is no GPU.
const NEEDS_GPU: &str = "needs a GPU";
/// The text of our cells that the bench left out.
const LEFT_OUT: &str = "left out";
/// The paper's sizes.
const SIZES: [&str; 3] = ["4 MB", "64 MB", "1 GB"];
/// Letters of the parts of Figure 4.6, by size.
const LETTERS: [(&str, &str); 3] = [("4.6 (a)", "4 MB"), ("4.6 (b)", "64 MB"), ("4.6 (c)", "1 GB")];
const COUNTS: [u64; 4] = [1, 2, 4, 8];

/// Adds the paper's values to the results of GPU benches. `part` has any of Tables 4.2 to 4.5 and Figures 4.3 to 4.6.
pub(crate) fn add_paper_values(mut part: Part) -> Part {
    let found = part.tables.clone();
    let of = |number: &str| found.iter().find(|table| table.number.as_deref() == Some(number));
    for table in &mut part.tables {
        let number = table.number.as_deref().unwrap_or_default();
        let Some(paper) = GPU_TABLES.into_iter().find(|paper| paper.number == number) else { continue };
        let ours = table.clone();
        *table = laid_out(paper, |size, column| cell_of(&ours, size, column));
    }
    if let (Some(pinned), Some(pageable)) = (of("4.2"), of("4.3")) {
        let copies = |size: &str| [cell_of(pinned, size, "T2: copy"), cell_of(pageable, size, "T1: copy")];
        part.extend(copies_of_path_1(Some(&copies)));
    }
    for shown in &mut part.figures {
        let number = shown.number.clone().unwrap_or_default();
        if let Some((_, size, _)) = SPREAD_OF_EIGHT.into_iter().find(|(known, ..)| *known == number) {
            add_copies(shown, size);
        } else if let Some((_, size)) = LETTERS.into_iter().find(|(known, _)| *known == number) {
            add_total(shown, size);
        }
    }
    part
}

const GPU_TABLES: [&PaperTable; 5] = [&TABLE_4_2, &TABLE_4_3, &TABLE_4_4, &TABLE_4_5, &FIGURE_4_6];

/// The same without a GPU: the paper's numbers, and that ours need one.
pub(crate) fn without_gpu() -> Part {
    let mut part = copies_of_path_1(None);
    part.tables.extend(GPU_TABLES.into_iter().map(|paper| laid_out(paper, |_, _| NEEDS_GPU.into())));
    for (number, size, _) in SPREAD_OF_EIGHT {
        let title =
            format!("the baseline's copy to the device, of each subscriber ({}); ours needs a GPU", binary_size(size));
        let mut shown = Figure::new(title, "subscriber", "us", Shape::Bars);
        shown.number = Some(number.to_owned());
        add_copies(&mut shown, size);
        part.figures.push(shown);
    }
    for (number, size) in LETTERS {
        let title = format!("total latency, {}; ours needs a GPU", binary_size(size));
        let mut shown = Figure::new(title, "subscribers", "us", Shape::Bars);
        shown.number = Some(number.to_owned());
        add_total(&mut shown, size);
        part.figures.push(shown);
    }
    part
}

/// A table of the paper, with a line of ours below each of its lines.
pub(crate) fn laid_out(paper: &PaperTable, ours_of: impl Fn(&str, &str) -> Cell) -> Table {
    let PaperTable { kind, number, page, title, columns, lines, unit } = paper;
    let is_table = *kind == Kind::Table;
    let mut laid = Vec::new();
    for (size, all) in *lines {
        laid.push((format!("{size}, the paper's"), all.iter().map(|value| Cell::from(*value)).collect()));
        laid.push((
            format!("{}, ours", binary_size(size)),
            columns.iter().map(|column| ours_of(size, column)).collect(),
        ));
    }
    let what = if is_table { String::new() } else { format!("Figure {number} as a table: ") };
    Table {
        number: is_table.then(|| (*number).into()),
        title: format!("{what}{title}; the paper's (page {page}) measured on {HARDWARE}"),
        columns: [&["message"], *columns].concat().into_iter().map(str::to_owned).collect(),
        lines: laid,
        unit: (*unit).into(),
    }
}

/// A figure of the paper, whose columns are series, ours beside the paper's.
pub(crate) fn plotted(paper: &PaperTable, axis: &'static str, note: &str, laid: &Table) -> Figure {
    let title = format!("{}{note}; the paper's measured on {HARDWARE}", paper.title);
    let mut shown = Figure::new(title, axis, paper.unit, Shape::Points);
    shown.number = Some(paper.number.to_owned());
    let name = |column: &str, whose: &str| match paper.columns.len() {
        1 => whose.to_owned(),
        _ => format!("{column}, {whose}"),
    };
    for (size, _) in paper.lines {
        for column in paper.columns {
            if let Some(value) = paper.value_at(size, column).and_then(PaperValue::value) {
                shown.set(size, &name(column, "the paper's"), value);
            }
            if let Cell::Figure(value) = cell_of_line(laid, &format!("{}, ours", binary_size(size)), column) {
                shown.set(size, &name(column, "ours"), value);
            }
        }
    }
    shown
}

/// A copy into pinned memory, and into pageable memory, of a message of a size.
type Copies<'a> = &'a dyn Fn(&str) -> [Cell; 2];

/// Figures 2.2 and 4.1, which are of the same copies.
fn copies_of_path_1(copies: Option<Copies<'_>>) -> Part {
    let all = |size: &str| copies.map_or_else(|| [NEEDS_GPU, NEEDS_GPU].map(Cell::from), |copies| copies(size));
    let table = laid_out(&FIGURE_4_1, |size, column| {
        let [pinned, pageable] = all(size);
        if column == FIGURE_4_1.columns[0] { pinned } else { pageable }
    });
    let note = if copies.is_none() { "; ours needs a GPU" } else { "" };
    let drawn = plotted(&FIGURE_4_1, "message", note, &table);
    let mut lines: Vec<(String, Vec<Cell>)> = PINNED_SPEEDUP
        .iter()
        .map(|(gpu, text)| (format!("{gpu}, the paper's"), SIZES.map(|_| Cell::from(*text)).to_vec()))
        .collect();
    let ratio = |size: &str| match all(size) {
        [Cell::Figure(pinned), Cell::Figure(pageable)] => Cell::Figure(pageable / pinned),
        [other, _] => other,
    };
    lines.push(("this GPU, ours".to_owned(), SIZES.map(ratio).to_vec()));
    let speedup = Table {
        number: None,
        title: "Figure 2.2 as a table: how many times faster a copy into pinned memory is (the paper's: page 11)"
            .to_owned(),
        columns: [&["GPU"], &SIZES[..]].concat().into_iter().map(str::to_owned).collect(),
        lines,
        unit: "".into(),
    };
    Part { tables: vec![speedup, table], figures: vec![drawn], ..Part::default() }
}

/// The paper's means of the baseline's copy, by number of subscribers.
fn add_copies(shown: &mut Figure, size: &str) {
    for (column, count) in COPY_COLUMNS {
        let Some(mean) = TABLE_4_5.value_at(size, column).and_then(PaperValue::value) else { continue };
        for subscriber in 1..=count {
            shown.set(&subscriber.to_string(), &format!("N = {count}, the paper's mean"), mean);
        }
    }
    if let Some((_, _, (least, most))) = SPREAD_OF_EIGHT.into_iter().find(|(_, known, _)| *known == size) {
        let range = format!("{} to {} us", figure(least), figure(most));
        shown.title = format!("{}; the paper's measured on {HARDWARE}, of N = 8 {range}", shown.title);
    }
}

/// The paper's total latencies.
fn add_total(shown: &mut Figure, size: &str) {
    for who in ["RGAPS", "baseline"] {
        for count in COUNTS {
            let paper = FIGURE_4_6.value_at(size, &format!("{who}, N = {count}"));
            if let Some(value) = paper.and_then(PaperValue::value) {
                shown.set(&count.to_string(), &format!("{who}, the paper's"), value);
            }
        }
    }
    shown.title = format!("{}; the paper's measured on {HARDWARE}", shown.title);
}

/// The cell of one of our tables, by the paper's size.
fn cell_of(table: &Table, size: &str, column: &str) -> Cell {
    cell_of_line(table, &binary_size(size), column)
}

fn cell_of_line(table: &Table, line: &str, column: &str) -> Cell {
    let at = table.columns.iter().skip(1).position(|known| known == column);
    let found = table.lines.iter().find(|(name, _)| name == line).zip(at).and_then(|((_, cells), at)| cells.get(at));
    found.cloned().unwrap_or_else(|| LEFT_OUT.into())
}

/// Our size for one of the paper's: "4 MiB" for "4 MB".
pub(crate) fn binary_size(size: &str) -> String {
    size.replace('B', "iB")
}

impl From<PaperValue> for Cell {
    fn from(value: PaperValue) -> Self {
        match value {
            PaperValue::Exact(value) => Self::Figure(value),
            PaperValue::Range(least, most) => Self::Text(format!("{} to {}", figure(least), figure(most))),
            PaperValue::Text(text) => Self::Text(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::of_figures;

    fn table(number: &'static str, columns: &[&str], values: &[f64]) -> Table {
        Table {
            number: Some(number.into()),
            title: "ours".to_owned(),
            columns: [&["message"], columns].concat().into_iter().map(str::to_owned).collect(),
            lines: of_figures(vec![("4 MiB".to_owned(), values.to_vec())]),
            unit: "us".into(),
        }
    }

    fn texts(table: &Table, line: &str) -> Vec<String> {
        table.lines.iter().find(|(name, _)| name == line).unwrap().1.iter().map(Cell::to_string).collect()
    }

    #[test]
    fn without_a_gpu_every_line_of_ours_says_so_and_the_papers_have_their_hardware() {
        let part = without_gpu();
        assert_eq!(part.tables.len(), 2 + GPU_TABLES.len());
        for table in &part.tables {
            let (ours, papers): (Vec<_>, Vec<_>) = table.lines.iter().partition(|(name, _)| name.ends_with("ours"));
            assert!(ours.iter().all(|(_, cells)| cells.iter().all(|cell| *cell == NEEDS_GPU.into())), "{table:?}");
            assert!(papers.iter().all(|(name, _)| name.ends_with("the paper's")), "{table:?}");
            assert!(table.title.contains("page "), "{table:?}");
        }
        let numbers: Vec<&str> = part.figures.iter().filter_map(|shown| shown.number.as_deref()).collect();
        assert_eq!(numbers, ["4.1", "4.3", "4.4", "4.5", "4.6 (a)", "4.6 (b)", "4.6 (c)"]);
        assert!(
            part.figures.iter().all(|shown| shown.title.contains("RTX 3090") && shown.title.contains("needs a GPU"))
        );
    }

    #[test]
    fn our_figures_stand_below_the_papers_of_the_same_size_and_column() {
        let tables = vec![
            table("4.2", &["T1: TLSF malloc", "T2: copy", "T3: notification"], &[0.5, 100.0, 2.0]),
            table("4.3", &["T1: copy", "T2: Unix socket"], &[300.0, 900.0]),
            table("4.5", &["T2: copy, N = 1", "T1: publish, N = 1"], &[400.0, 5.0]),
        ];
        let part = add_paper_values(Part { tables, ..Part::default() });
        assert_eq!(texts(&part.tables[0], "4 MB, the paper's"), ["1.00", "224", "1.00"]);
        assert_eq!(texts(&part.tables[0], "4 MiB, ours"), ["0.500", "100", "2.00"]);
        assert_eq!(texts(&part.tables[0], "1 GiB, ours"), [LEFT_OUT; 3]);
        assert_eq!(texts(&part.tables[2], "4 MiB, ours")[..5], ["5.00", LEFT_OUT, LEFT_OUT, LEFT_OUT, "400"]);
        let [speedup, copies] = &part.tables[3..] else { panic!("{:?}", part.tables) };
        assert_eq!(texts(speedup, "this GPU, ours")[..2], ["3.00", LEFT_OUT]);
        assert_eq!(texts(copies, "4 MiB, ours"), ["100", "300"]);
        let drawn = &part.figures[0];
        let ours = drawn.series.iter().find(|(name, _)| name == "Pageable-UDS, ours").unwrap();
        assert_eq!((drawn.number.as_deref(), &ours.1[..]), (Some("4.1"), &[Some(300.0)][..]));
    }

    #[test]
    fn total_latency_has_a_range_where_the_text_has_one_and_no_invented_points() {
        let table = laid_out(&FIGURE_4_6, |_, _| NEEDS_GPU.into());
        let papers = texts(&table, "4 MB, the paper's");
        assert_eq!((&papers[0][..], &papers[4][..], &papers[5][..]), ("754 to 759", "5402", "in its plot only"));
        assert!(table.number.is_none() && table.title.starts_with("Figure 4.6 as a table: "));
    }
}
