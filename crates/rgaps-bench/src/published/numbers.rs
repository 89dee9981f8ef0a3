//! The numbers of the RGAPS paper, each with its table or figure and its page. Nothing here was measured by this project.
//!
//! Source      RGAPS (Remote GPU-Aware Publish/Subscribe), master's thesis, 2026. Of a figure there is only what the paper's text says: its other
//!             points are in a plot alone.

use Said::{Between, Of, Words};

/// What the paper says of one value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Said {
    /// This.
    Of(f64),
    /// A value, or several, between these.
    Between(f64, f64),
    /// Words: a bound, or that it is in the plot only.
    Words(&'static str),
}

/// What a part of the paper is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Table,
    Figure,
}

/// A table or a figure of the paper.
#[derive(Debug)]
pub(crate) struct Published {
    /// Table or Figure.
    pub(crate) kind: Kind,
    /// Its number.
    pub(crate) number: &'static str,
    pub(crate) page: u32,
    pub(crate) title: &'static str,
    pub(crate) columns: &'static [&'static str],
    /// By the message's size.
    pub(crate) lines: &'static [(&'static str, &'static [Said])],
    pub(crate) unit: &'static str,
}

/// The machines of its chapter 4, in short; Table 4.1 has the rest.
pub(crate) const HARDWARE: &str = "Threadripper 3970X, RTX 3090, ConnectX-7 at 400 Gb/s";

/// The value is a point of a plot that the text does not mention.
const PLOT: Said = Words("in its plot only");
/// The paper has no such column.
const NONE: Said = Words("-");

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

pub(crate) const FIGURE_3_9: Published = Published {
    kind: Kind::Figure,
    number: "3.9",
    page: 33,
    title: "the time to zero memory, relative to the link's time for a message of that size",
    columns: &["% of the link's time"],
    lines: &[
        ("64 KB", &[PLOT]),
        ("1 MB", &[PLOT]),
        ("4 MB", &[PLOT]),
        ("64 MB", &[Words("above it, more than 90")]),
        ("1 GB", &[Of(91.4)]),
    ],
    unit: "% of the link's time",
};

pub(crate) const FIGURE_4_1: Published = Published {
    kind: Kind::Figure,
    number: "4.1",
    page: 44,
    title: "the copy from the device in data path 1",
    columns: &["Pinned-SHM", "Pageable-UDS"],
    lines: &[
        ("4 MB", &[Of(224.0), Of(451.0)]),
        ("64 MB", &[Of(2906.0), Of(5709.0)]),
        ("1 GB", &[Of(47_905.0), Of(85_806.0)]),
    ],
    unit: "us",
};

pub(crate) const TABLE_4_2: Published = Published {
    kind: Kind::Table,
    number: "4.2",
    page: 44,
    title: "data path 1, Pinned-SHM",
    columns: &["T1: TLSF malloc", "T2: copy", "T3: notification"],
    lines: &[
        ("4 MB", &[Of(1.0), Of(224.0), Of(1.0)]),
        ("64 MB", &[Of(1.0), Of(2906.0), Of(1.0)]),
        ("1 GB", &[Of(1.0), Of(47_905.0), Of(1.0)]),
    ],
    unit: "us",
};

pub(crate) const TABLE_4_3: Published = Published {
    kind: Kind::Table,
    number: "4.3",
    page: 45,
    title: "data path 1, Pageable-UDS",
    columns: &["T1: copy", "T2: Unix socket"],
    lines: &[
        ("4 MB", &[Of(451.0), Of(1184.0)]),
        ("64 MB", &[Of(5709.0), Of(17_810.0)]),
        ("1 GB", &[Of(85_806.0), Of(208_318.0)]),
    ],
    unit: "us",
};

pub(crate) const FIGURE_4_2: Published = Published {
    kind: Kind::Figure,
    number: "4.2",
    page: 46,
    title: "data path 2, from host memory to host memory",
    columns: &["RDMA-Write-Imm", "TCP/IP", "RGAPS over tcp"],
    lines: &[("4 MB", &[Of(305.0), Of(3365.0), NONE]), ("64 MB", &[PLOT, PLOT, NONE]), ("1 GB", &[PLOT, PLOT, NONE])],
    unit: "us",
};

pub(crate) const TABLE_4_4: Published = Published {
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
        ("4 MB", &[Of(1.0), Of(216.0), Of(6.0), Of(7.0), Of(9.0), Of(11.0)]),
        ("64 MB", &[Of(1.0), Of(2872.0), Of(6.0), Of(7.0), Of(9.0), Of(11.0)]),
        ("1 GB", &[Of(1.0), Of(43_677.0), Of(6.0), Of(7.0), Of(9.0), Of(11.0)]),
    ],
    unit: "us",
};

pub(crate) const TABLE_4_5: Published = Published {
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
        ("4 MB", &[Of(6.0), Of(7.0), Of(7.0), Of(10.0), Of(396.0), Of(520.0), Of(866.0), Of(2238.0)]),
        ("64 MB", &[Of(9.0), Of(9.0), Of(11.0), Of(12.0), Of(5625.0), Of(7439.0), Of(12_468.0), Of(24_357.0)]),
        ("1 GB", &[Of(9.0), Of(10.0), Of(11.0), Of(12.0), Of(85_172.0), Of(118_273.0), Of(191_378.0), Of(382_018.0)]),
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

pub(crate) const FIGURE_4_6: Published = Published {
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
        ("4 MB", &[OURS_4_MB, OURS_4_MB, OURS_4_MB, OURS_4_MB, Of(5402.0), PLOT, PLOT, Of(7248.0)]),
        ("64 MB", &[OURS_64_MB, OURS_64_MB, OURS_64_MB, OURS_64_MB, Of(68_985.0), PLOT, PLOT, Of(87_720.0)]),
        ("1 GB", &[OURS_1_GB, OURS_1_GB, OURS_1_GB, OURS_1_GB, Of(982_299.0), PLOT, PLOT, Of(1_279_148.0)]),
    ],
    unit: "us",
};
const OURS_4_MB: Said = Between(754.0, 759.0);
const OURS_64_MB: Said = Between(10_407.0, 10_412.0);
const OURS_1_GB: Said = Between(164_706.0, 164_711.0);

impl Said {
    /// For a plot; a narrow range is drawn at its middle.
    pub(crate) fn value(self) -> Option<f64> {
        match self {
            Of(value) => Some(value),
            Between(least, most) => Some((least + most) / 2.0),
            Words(_) => None,
        }
    }
}

impl Published {
    /// What it says in a column for messages of a size.
    pub(crate) fn said(&self, size: &str, column: &str) -> Option<Said> {
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
        for Published { number, columns, lines, page, .. } in all {
            assert!(lines.iter().all(|(_, values)| values.len() == columns.len()), "{number}");
            assert!((33..=50).contains(page), "{number}");
        }
    }

    #[test]
    fn figures_and_tables_of_the_same_copies_agree() {
        for size in ["4 MB", "64 MB", "1 GB"] {
            let value = |from: &Published, column| from.said(size, column).and_then(Said::value);
            assert_eq!(value(&FIGURE_4_1, "Pinned-SHM"), value(&TABLE_4_2, "T2: copy"));
            assert_eq!(value(&FIGURE_4_1, "Pageable-UDS"), value(&TABLE_4_3, "T1: copy"));
        }
        for (_, size, (least, most)) in SPREAD_OF_EIGHT {
            let mean = TABLE_4_5.said(size, "T2: copy, N = 8").and_then(Said::value).unwrap();
            assert!(least <= mean && mean <= most, "{size}");
        }
        assert!(COPY_COLUMNS.iter().all(|(column, _)| TABLE_4_5.columns.contains(column)));
    }
}
