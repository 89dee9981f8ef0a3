//! The numbers of the RGAPS paper, each with its table or figure and its page. Nothing here was measured by this project.
//!
//! Source      RGAPS (Remote GPU-Aware Publish/Subscribe), master's thesis, 2026. Of a figure there is only what the paper's text says: its other
//!             points are in a plot alone.

use PaperValue::{Exact, Range, Text};

/// A value of the paper.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PaperValue {
    /// One number.
    Exact(f64),
    /// One or several numbers from the first to the second.
    Range(f64, f64),
    /// A bound, or why there is no number.
    Text(&'static str),
}

/// What a part of the paper is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Table,
    Figure,
}

/// A table or a figure of the paper.
#[derive(Debug)]
pub(crate) struct PaperTable {
    /// Table or Figure.
    pub(crate) kind: Kind,
    /// Its number.
    pub(crate) number: &'static str,
    pub(crate) page: u32,
    pub(crate) title: &'static str,
    pub(crate) columns: &'static [&'static str],
    /// By the message's size.
    pub(crate) lines: &'static [(&'static str, &'static [PaperValue])],
    pub(crate) unit: &'static str,
}

/// The machines of the paper's chapter 4, in short; Table 4.1 has the rest.
pub(crate) const HARDWARE: &str = "Threadripper 3970X, RTX 3090, ConnectX-7 at 400 Gb/s";

/// The value is a point of a plot that the text does not mention.
const PLOT: PaperValue = Text("in its plot only");
/// The paper has no such column.
const NONE: PaperValue = Text("-");

/// Table 4.1, page 43: hardware and software of both machines.
pub(crate) const MACHINES: [(&str, &str); 9] = [
    ("CPU", "AMD Ryzen Threadripper 3970X (32 cores, 64 threads)"),
    ("GPU", "NVIDIA GeForce RTX 3090, 24 GB, PCIe Gen4 x16"),
    ("RAM", "128 GB DDR4-2666"),
    ("adapter", "NVIDIA ConnectX-7, PCIe Gen4 x16"),
    ("interconnect", "InfiniBand NDR 400 Gb/s"),
    ("OS", "Ubuntu 22.04, Linux 6.8.0"),
    ("compiler", "nvcc 11.5, gcc 11.4.0"),
    ("CUDA", "12.7"),
    ("iceoryx", "Iceoryx 2.0.6"),
];

/// Figure 2.2, page 11: how many times faster pinned memory is, from 4 MB to 1 GB, by GPU and bus.
pub(crate) const PINNED_SPEEDUP: [(&str, &str); 3] = [
    ("RTX 3090, PCIe 4.0 x16", "1.8 to 2.0"),
    ("RTX 3090, PCIe 3.0 x8", "1.0 to 1.1"),
    ("RTX 4080, PCIe 4.0 x16", "more than the RTX 3090"),
];

pub(crate) const FIGURE_3_9: PaperTable = PaperTable {
    kind: Kind::Figure,
    number: "3.9",
    page: 33,
    title: "the time to zero memory, relative to the link's time for a message of that size",
    columns: &["% of the link's time"],
    lines: &[
        ("64 KB", &[PLOT]),
        ("1 MB", &[PLOT]),
        ("4 MB", &[PLOT]),
        ("64 MB", &[Text("above it, more than 90")]),
        ("1 GB", &[Exact(91.4)]),
    ],
    unit: "% of the link's time",
};

pub(crate) const FIGURE_4_1: PaperTable = PaperTable {
    kind: Kind::Figure,
    number: "4.1",
    page: 44,
    title: "the copy from the device in data path 1",
    columns: &["Pinned-SHM", "Pageable-UDS"],
    lines: &[
        ("4 MB", &[Exact(224.0), Exact(451.0)]),
        ("64 MB", &[Exact(2906.0), Exact(5709.0)]),
        ("1 GB", &[Exact(47_905.0), Exact(85_806.0)]),
    ],
    unit: "us",
};

pub(crate) const TABLE_4_2: PaperTable = PaperTable {
    kind: Kind::Table,
    number: "4.2",
    page: 44,
    title: "data path 1, Pinned-SHM",
    columns: &["T1: TLSF malloc", "T2: copy", "T3: notification"],
    lines: &[
        ("4 MB", &[Exact(1.0), Exact(224.0), Exact(1.0)]),
        ("64 MB", &[Exact(1.0), Exact(2906.0), Exact(1.0)]),
        ("1 GB", &[Exact(1.0), Exact(47_905.0), Exact(1.0)]),
    ],
    unit: "us",
};

pub(crate) const TABLE_4_3: PaperTable = PaperTable {
    kind: Kind::Table,
    number: "4.3",
    page: 45,
    title: "data path 1, Pageable-UDS",
    columns: &["T1: copy", "T2: Unix socket"],
    lines: &[
        ("4 MB", &[Exact(451.0), Exact(1184.0)]),
        ("64 MB", &[Exact(5709.0), Exact(17_810.0)]),
        ("1 GB", &[Exact(85_806.0), Exact(208_318.0)]),
    ],
    unit: "us",
};

pub(crate) const FIGURE_4_2: PaperTable = PaperTable {
    kind: Kind::Figure,
    number: "4.2",
    page: 46,
    title: "data path 2, from host memory to host memory",
    columns: &["RDMA-Write-Imm", "TCP/IP", "RGAPS over tcp"],
    lines: &[
        ("4 MB", &[Exact(305.0), Exact(3365.0), NONE]),
        ("64 MB", &[PLOT, PLOT, NONE]),
        ("1 GB", &[PLOT, PLOT, NONE]),
    ],
    unit: "us",
};

pub(crate) const TABLE_4_4: PaperTable = PaperTable {
    kind: Kind::Table,
    number: "4.4",
    page: 47,
    title: "data path 3, Pinned-Shared, mean of N subscribers",
    columns: &[
        "T1: TLSF malloc",
        "T2: copy",
        "T3: notification, N = 1",
        "T3: notification, N = 2",
        "T3: notification, N = 4",
        "T3: notification, N = 8",
    ],
    lines: &[
        ("4 MB", &[Exact(1.0), Exact(216.0), Exact(6.0), Exact(7.0), Exact(9.0), Exact(11.0)]),
        ("64 MB", &[Exact(1.0), Exact(2872.0), Exact(6.0), Exact(7.0), Exact(9.0), Exact(11.0)]),
        ("1 GB", &[Exact(1.0), Exact(43_677.0), Exact(6.0), Exact(7.0), Exact(9.0), Exact(11.0)]),
    ],
    unit: "us",
};

pub(crate) const TABLE_4_5: PaperTable = PaperTable {
    kind: Kind::Table,
    number: "4.5",
    page: 48,
    title: "data path 3, Pageable-Iceoryx, mean of N subscribers",
    columns: &[
        "T1: publish, N = 1",
        "T1: publish, N = 2",
        "T1: publish, N = 4",
        "T1: publish, N = 8",
        "T2: copy, N = 1",
        "T2: copy, N = 2",
        "T2: copy, N = 4",
        "T2: copy, N = 8",
    ],
    lines: &[
        (
            "4 MB",
            &[Exact(6.0), Exact(7.0), Exact(7.0), Exact(10.0), Exact(396.0), Exact(520.0), Exact(866.0), Exact(2238.0)],
        ),
        (
            "64 MB",
            &[
                Exact(9.0),
                Exact(9.0),
                Exact(11.0),
                Exact(12.0),
                Exact(5625.0),
                Exact(7439.0),
                Exact(12_468.0),
                Exact(24_357.0),
            ],
        ),
        (
            "1 GB",
            &[
                Exact(9.0),
                Exact(10.0),
                Exact(11.0),
                Exact(12.0),
                Exact(85_172.0),
                Exact(118_273.0),
                Exact(191_378.0),
                Exact(382_018.0),
            ],
        ),
    ],
    unit: "us",
};

/// Figures 4.3 to 4.5, page 49: between which values the copies of eight subscribers were, in us. Table 4.5 has the means for any number.
pub(crate) const SPREAD_OF_EIGHT: [(&str, &str, (f64, f64)); 3] = [
    ("4.3", "4 MB", (2170.0, 2310.0)),
    ("4.4", "64 MB", (24_230.0, 24_480.0)),
    ("4.5", "1 GB", (381_970.0, 382_100.0)),
];

/// The columns of the baseline's copy in Table 4.5, with their numbers of subscribers.
pub(crate) const COPY_COLUMNS: [(&str, u64); 4] =
    [("T2: copy, N = 1", 1), ("T2: copy, N = 2", 2), ("T2: copy, N = 4", 4), ("T2: copy, N = 8", 8)];

pub(crate) const FIGURE_4_6: PaperTable = PaperTable {
    kind: Kind::Figure,
    number: "4.6",
    page: 50,
    title: "from publish to the mean of N subscribers on the other host",
    columns: &[
        "RGAPS, N = 1",
        "RGAPS, N = 2",
        "RGAPS, N = 4",
        "RGAPS, N = 8",
        "baseline, N = 1",
        "baseline, N = 2",
        "baseline, N = 4",
        "baseline, N = 8",
    ],
    lines: &[
        ("4 MB", &[OURS_4_MB, OURS_4_MB, OURS_4_MB, OURS_4_MB, Exact(5402.0), PLOT, PLOT, Exact(7248.0)]),
        ("64 MB", &[OURS_64_MB, OURS_64_MB, OURS_64_MB, OURS_64_MB, Exact(68_985.0), PLOT, PLOT, Exact(87_720.0)]),
        ("1 GB", &[OURS_1_GB, OURS_1_GB, OURS_1_GB, OURS_1_GB, Exact(982_299.0), PLOT, PLOT, Exact(1_279_148.0)]),
    ],
    unit: "us",
};
const OURS_4_MB: PaperValue = Range(754.0, 759.0);
const OURS_64_MB: PaperValue = Range(10_407.0, 10_412.0);
const OURS_1_GB: PaperValue = Range(164_706.0, 164_711.0);

impl PaperValue {
    /// For a plot; a narrow range is drawn at its middle.
    pub(crate) fn value(self) -> Option<f64> {
        match self {
            Exact(value) => Some(value),
            Range(least, most) => Some((least + most) / 2.0),
            Text(_) => None,
        }
    }
}

impl PaperTable {
    /// The value in a column for messages of a size.
    pub(crate) fn value_at(&self, size: &str, column: &str) -> Option<PaperValue> {
        let at = self.columns.iter().position(|known| *known == column)?;
        self.lines.iter().find(|(known, _)| *known == size).map(|(_, all)| all[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_value_for_each_column() {
        let all = [&FIGURE_3_9, &FIGURE_4_1, &TABLE_4_2, &TABLE_4_3, &FIGURE_4_2, &TABLE_4_4, &TABLE_4_5, &FIGURE_4_6];
        for PaperTable { number, columns, lines, page, .. } in all {
            assert!(lines.iter().all(|(_, values)| values.len() == columns.len()), "{number}");
            assert!((33..=50).contains(page), "{number}");
        }
    }

    #[test]
    fn figures_and_tables_of_the_same_copies_agree() {
        for size in ["4 MB", "64 MB", "1 GB"] {
            let value = |from: &PaperTable, column| from.value_at(size, column).and_then(PaperValue::value);
            assert_eq!(value(&FIGURE_4_1, "Pinned-SHM"), value(&TABLE_4_2, "T2: copy"));
            assert_eq!(value(&FIGURE_4_1, "Pageable-UDS"), value(&TABLE_4_3, "T1: copy"));
        }
        for (_, size, (least, most)) in SPREAD_OF_EIGHT {
            let mean = TABLE_4_5.value_at(size, "T2: copy, N = 8").and_then(PaperValue::value).unwrap();
            assert!(least <= mean && mean <= most, "{size}");
        }
        assert!(COPY_COLUMNS.iter().all(|(column, _)| TABLE_4_5.columns.contains(column)));
    }
}
