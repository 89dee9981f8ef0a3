//! `bench paper`: the RGAPS paper's Tables 4.1 to 4.5 and Figures 2.2, 3.9 and 4.1 to 4.6 in its layout, on the device and the link that are there.
//!
//! The paper's values stand beside ours and name the hardware that they were measured on: none of them is a claim of this project. Tables of copies
//! to and from a GPU come from `path1`, `path3` and `e2e`; without a GPU, our cells say that they need one. Two figures need no GPU:
//!
//! ```text
//!   Figure 4.2  ours      source ──ring over tcp, or over rdma──▶ ring memory, released
//!               TCP/IP    source ──one socket──▶ memory                                    over the same link
//!   Figure 3.9  zeroing   memory of the message's size is written with zeroes
//!               the link  the same number of bytes, by the bare link: a socket, or `ib_write_bw`
//! ```
//!
//! A receiver that polls its memory has to zero it after each message. RGAPS takes completions instead, as the paper proposes, and so spends none of
//! that time. Zeroing is a memset with any transport; over rdma only its reference uses verbs.

use std::hint::black_box;

use rgaps_link::rdma::Candidate;
use rgaps_link::{Integrity, RingOptions, Watermark};

use crate::link::{Bare, source};
use crate::measure::{Medians, Pairs, seconds};
use crate::network::Network;
use crate::paper_values::{self, FIGURE_3_9, FIGURE_4_2, MACHINES, laid_out, plotted};
use crate::rdma::{candidates, ring_options, write_bw};
use crate::report::{Circumstances, Gpu};
use crate::results::{Cell, Part, Table};
use crate::ring::Ring;
use crate::{BenchError, Effort, Options, Row, available_bytes};

const BENCH: &str = "paper";
const RING_BYTES: u64 = 64 << 20;
/// The sizes as the paper names them, with our bytes and rounds.
const PATH_2: [(&str, u64, usize); 3] = [("4 MB", 4 << 20, 100), ("64 MB", 64 << 20, 40), ("1 GB", 1 << 30, 8)];
const ZEROING: [(&str, u64, usize); 5] = [
    ("64 KB", 64 << 10, 300),
    ("1 MB", 1 << 20, 200),
    ("4 MB", 4 << 20, 100),
    ("64 MB", 64 << 20, 40),
    ("1 GB", 1 << 30, 8),
];
/// How many times a message's bytes are needed: its source, and memory to be zeroed or received into.
const NEEDS: u64 = 4;
/// Over rdma, longer messages are left out on any device: an emulated one carries some 100 MB/s.
const RDMA_BYTES_MAX: u64 = 64 << 20;
const RDMA_ROUNDS: usize = 10;
/// The longest write of `ib_write_bw`; a longer message takes several.
const WRITE_BYTES_MAX: u64 = 1 << 20;
const WARM_UP: usize = 3;

/// Table 4.1 and the figures that need no GPU, over tcp and loopback. Tables that need a GPU have the paper's values only.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let mut part = machines(None, "tcp over loopback");
    part.extend(paper_values::without_gpu());
    part.extend(run_link(options)?);
    Ok(part)
}

/// The link's figures, 3.9 and 4.2, over tcp.
pub(crate) fn run_link(options: &Options) -> Result<Part, BenchError> {
    link_figures(options, &Link::Tcp)
}

/// The same over rdma, in a virtual machine or on a host with two ports.
pub(crate) fn run_rdma(options: &Options) -> Result<Part, BenchError> {
    let ports = candidates().map_err(failed)?;
    let devices = format!("rdma, {} and {}", ports.0.device, ports.1.device);
    let network = Network::namespaces().map_err(failed)?;
    let mut part = machines(None, &devices);
    part.extend(link_figures(options, &Link::Rdma { ports, network })?);
    Ok(part)
}

/// Table 4.1: the paper's machines and this one.
pub(crate) fn machines(gpu: Option<Gpu>, link: &str) -> Part {
    let now = Circumstances::now("", gpu);
    let ours = |what: &str| match what {
        "CPU" => format!("{} ({} cores)", now.machine.processor, now.machine.cores),
        "GPU" => {
            now.gpu.as_ref().map_or_else(|| "none, messages are in host memory".to_owned(), |gpu| gpu.device.clone())
        }
        "RAM" => format!("{:.0} GiB", now.machine.memory_bytes as f64 / f64::from(1 << 30)),
        "interconnect" => link.to_owned(),
        "OS" => format!("Linux {}", now.machine.kernel),
        "CUDA" => now.gpu.as_ref().map_or_else(|| "none".to_owned(), |gpu| gpu.driver.clone()),
        "iceoryx" => {
            now.versions.get("iceoryx2").map_or_else(|| "none".to_owned(), |version| format!("iceoryx2 {version}"))
        }
        _ => "-".to_owned(),
    };
    let lines =
        MACHINES.iter().map(|(what, theirs)| ((*what).to_owned(), vec![Cell::from(*theirs), Cell::Text(ours(what))]));
    let table = Table {
        number: Some("4.1".into()),
        title: "hardware and software (the paper's: page 43)".to_owned(),
        columns: ["", "the paper's, each of two machines", "this machine"].map(str::to_owned).to_vec(),
        lines: lines.collect(),
        unit: "".into(),
    };
    Part { tables: vec![table], ..Part::default() }
}

/// What is between the hosts.
enum Link {
    Tcp,
    Rdma { ports: (Candidate, Candidate), network: Network },
}

impl Link {
    /// Our ring over it.
    fn ring(&self) -> Result<Ring, BenchError> {
        let options = RingOptions { ring_bytes: RING_BYTES, integrity: Integrity::None, ..RingOptions::default() };
        match self {
            Self::Tcp => Ring::tcp(options),
            Self::Rdma { ports, .. } => Ring::rdma(ports, ring_options(RING_BYTES, 1 << 20, Watermark::default())),
        }
    }

    /// A bare socket over it.
    fn socket(&self) -> Result<Bare, BenchError> {
        match self {
            Self::Tcp => Bare::new(RING_BYTES, Integrity::None),
            Self::Rdma { network, .. } => Bare::over(network, RING_BYTES, Integrity::None),
        }
    }

    /// How ours goes, for the names of rows.
    fn name(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp, no checksums",
            Self::Rdma { .. } => "rdma",
        }
    }

    /// What is nothing but the link, for the names of rows.
    fn bare(&self) -> &'static str {
        match self {
            Self::Tcp => "bare socket",
            Self::Rdma { .. } => "ib_write_bw",
        }
    }

    fn rounds(&self, effort: Effort, full: usize) -> usize {
        match self {
            Self::Tcp => effort.rounds(full),
            Self::Rdma { .. } => effort.rounds(RDMA_ROUNDS),
        }
    }

    /// Why a size is not measured, if it is not.
    fn lacks(&self, effort: Effort, bytes: u64) -> Option<&'static str> {
        match self {
            Self::Rdma { .. } if bytes > RDMA_BYTES_MAX => Some("left out over rdma: above 64 MiB"),
            _ if effort == Effort::Quick && bytes > RING_BYTES => Some("left out of --quick"),
            _ if available_bytes() < NEEDS * bytes => Some("left out: needs more memory"),
            _ => None,
        }
    }
}

fn link_figures(options: &Options, link: &Link) -> Result<Part, BenchError> {
    let path_2 = by_size(&PATH_2, |size, bytes, rounds| {
        let case = format!("path 2, {} (ours: {})", paper_values::binary_size(size), link.name());
        measured(options, link, (case, "bare socket"), (bytes, rounds), path_2)
    })?;
    let zeroing = by_size(&ZEROING, |size, bytes, rounds| {
        let case = format!("zeroing {}", paper_values::binary_size(size));
        measured(options, link, (case, link.bare()), (bytes, rounds), zeroing)
    })?;
    let path_2_table = laid_out(&FIGURE_4_2, |size, column| match (column, link) {
        ("TCP/IP", _) => cell(&path_2, size, |found| found.theirs),
        ("RDMA-Write-Imm", Link::Tcp) => "needs RDMA".into(),
        ("RGAPS over tcp", Link::Rdma { .. }) => "-".into(),
        _ => cell(&path_2, size, |found| found.ours),
    });
    let zeroing_table = laid_out(&FIGURE_3_9, |size, _| cell(&zeroing, size, |found| found.ratio * 100.0));
    let [ours, bare] = [link.name(), link.bare()].map(|link| format!("; ours: {link}"));
    let figures = vec![
        plotted(&FIGURE_3_9, "message", &bare, &zeroing_table),
        plotted(&FIGURE_4_2, "message", &ours, &path_2_table),
    ];
    let rows = path_2.into_iter().chain(zeroing).filter_map(|(_, found)| found.ok()).collect();
    Ok(Part { rows, tables: vec![zeroing_table, path_2_table], figures, ..Part::default() })
}

/// A row, or why there is none.
type Found = Result<Row, &'static str>;

fn by_size(
    sizes: &[(&'static str, u64, usize)],
    mut measure: impl FnMut(&str, u64, usize) -> Result<Found, BenchError>,
) -> Result<Vec<(&'static str, Found)>, BenchError> {
    sizes.iter().map(|(size, bytes, rounds)| Ok((*size, measure(size, *bytes, *rounds)?))).collect()
}

fn cell(all: &[(&str, Found)], size: &str, figure: impl Fn(&Medians) -> f64) -> Cell {
    match all.iter().find(|(known, _)| *known == size) {
        Some((_, Ok(row))) => row.medians.as_ref().map_or_else(|| "no figure".into(), |found| figure(found).into()),
        Some((_, Err(why))) => (*why).into(),
        None => "-".into(),
    }
}

/// A pair of figures in us, measured in turns, if it is wanted and there is room for it.
fn measured(
    options: &Options,
    link: &Link,
    (case, reference): (String, &str),
    (bytes, rounds): (u64, usize),
    measure: fn(&Link, u64, usize) -> Result<Pairs, BenchError>,
) -> Result<Found, BenchError> {
    if let Some(why) = link.lacks(options.effort, bytes) {
        return Ok(Err(why));
    }
    if !options.wants(&case) {
        return Ok(Err("not asked for"));
    }
    let pairs = measure(link, bytes, link.rounds(options.effort, rounds))?;
    Ok(Ok(Row::of_pairs((BENCH, case), reference, "us", &pairs, None)))
}

/// A message from memory to memory: our ring, and a bare socket.
fn path_2(link: &Link, bytes: u64, rounds: usize) -> Result<Pairs, BenchError> {
    let source = source(bytes)?;
    let data = source.mapping().shared(0, bytes).map_err(failed)?;
    let (mut ring, mut bare) = (link.ring()?, link.socket()?);
    ring.register(&source)?;
    for _ in 0..WARM_UP {
        ring.transfer(data)?;
        bare.transfer(data)?;
    }
    let us = |seconds: f64| seconds * 1e6;
    Pairs::run(rounds, || ring.transfer(data).map(us), || bare.transfer(data).map(us))
}

/// Zeroing, and the bare link.
fn zeroing(link: &Link, bytes: u64, rounds: usize) -> Result<Pairs, BenchError> {
    let mut memory = vec![1_u8; bytes as usize];
    let mut zero = move || {
        let took = seconds(|| black_box(&mut memory).fill(0));
        black_box(&memory);
        Ok(took * 1e6)
    };
    match link {
        Link::Tcp => {
            let source = source(bytes)?;
            let data = source.mapping().shared(0, bytes).map_err(failed)?;
            let mut bare = link.socket()?;
            for _ in 0..WARM_UP {
                zero()?;
                bare.transfer(data)?;
            }
            Pairs::run(rounds, zero, || bare.transfer(data).map(|took| took * 1e6))
        }
        Link::Rdma { ports, .. } => {
            let write = bytes.min(WRITE_BYTES_MAX);
            // At least five, which is the fewest that it takes.
            let writes = (bytes / write).max(5);
            let per_message = (bytes / write) as f64 / writes as f64;
            let bare = || write_bw(ports, write, writes).map(|rate| (write * writes) as f64 / rate * per_message);
            Pairs::run(rounds, zero, bare)
        }
    }
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_machines_has_the_papers_beside_this_one() {
        let part = machines(None, "tcp over loopback");
        let line = |what: &str| part.tables[0].lines.iter().find(|(name, _)| name == what).unwrap().1.clone();
        assert_eq!(line("interconnect"), ["InfiniBand NDR 400 Gb/s".into(), Cell::from("tcp over loopback")]);
        assert_eq!(line("GPU")[1], "none, messages are in host memory".into());
        assert_eq!(part.tables[0].number.as_deref(), Some("4.1"));
    }

    #[test]
    fn without_rdma_its_column_says_so_and_a_size_that_is_left_out_says_why() {
        let options =
            Options { effort: Effort::Quick, only: Some("zeroing 64 KiB beside bare socket".to_owned()), peers: None };
        let part = run_link(&options).unwrap();
        assert_eq!(part.rows.iter().map(Row::name).collect::<Vec<_>>(), ["zeroing 64 KiB beside bare socket"]);
        let [zeroing, path_2] = &part.tables[..] else { panic!("{:?}", part.tables) };
        let ours = |table: &Table, size: &str| {
            table.lines.iter().find(|(name, _)| *name == format!("{size}, ours")).unwrap().1.clone()
        };
        assert!(matches!(ours(zeroing, "64 KiB")[..], [Cell::Figure(_)]), "{zeroing:?}");
        assert_eq!(ours(zeroing, "1 GiB"), ["left out of --quick".into()]);
        assert_eq!(ours(path_2, "4 MiB"), ["needs RDMA", "not asked for", "not asked for"].map(Cell::from));
    }
}
