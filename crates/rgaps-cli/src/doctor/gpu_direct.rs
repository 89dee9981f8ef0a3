//! The doctor's finding on GPUDirect RDMA: for each GPU and RDMA device, whether the network card can access the GPU's memory, or why not.
//!
//! It is tried as `rgapsd` tries it: a GPU exports memory, and the card registers it. Nothing is sent.

use std::collections::BTreeSet;
use std::sync::Arc;

use rgaps::device::cuda::Device;
use rgaps::device::{Choice, PoolMemory, PoolSpec, open};
use rgaps_link::rdma::{Domain, ports};
use rgaps_os::DmaBuf;

use super::Finding;

const WHAT: &str = "GPUDirect RDMA";
/// Bytes of memory that are tried.
const TRIED_BYTES: u64 = 4096;

/// A GPU, a network card if there is one, and whether the one can access the other's memory.
#[derive(Debug)]
struct Tried {
    gpu: String,
    card: Option<String>,
    outcome: Result<(), String>,
}

pub(super) fn finding() -> Finding {
    let cards: BTreeSet<String> = ports().unwrap_or_default().into_iter().map(|port| port.device).collect();
    let count = Device::count().unwrap_or(0);
    of(&(0..count).flat_map(|ordinal| tried(ordinal, &cards)).collect::<Vec<_>>())
}

fn tried(ordinal: u32, cards: &BTreeSet<String>) -> Vec<Tried> {
    let gpu = format!("cuda:{ordinal}");
    let properties = match Device::properties_of(ordinal) {
        // Network cards access its pools as any other memory of the host.
        Ok(found) if found.is_integrated => return Vec::new(),
        found => found,
    };
    let able = properties.and_then(|found| found.gpu_direct.map_err(str::to_owned));
    let (memory, _pool) = match able.and_then(|_| exported(ordinal)) {
        Ok(exported) => exported,
        Err(why) => return vec![Tried { gpu, card: None, outcome: Err(why) }],
    };
    if cards.is_empty() {
        return vec![Tried { gpu, card: None, outcome: Ok(()) }];
    }
    let with = |card: &String| {
        let outcome = Domain::open(card).and_then(|domain| domain.try_device_memory(&memory));
        let outcome = outcome.map_err(|error| error.to_string());
        Tried { gpu: gpu.clone(), card: Some(card.clone()), outcome }
    };
    cards.iter().map(with).collect()
}

/// Memory of a GPU for network cards, and the pool that it belongs to.
fn exported(ordinal: u32) -> Result<(Arc<DmaBuf>, Arc<dyn PoolMemory>), String> {
    let backend = open(Choice::Cuda(ordinal)).map_err(|error| error.to_string())?.backend;
    let spec = PoolSpec { name: "rgaps-doctor".to_owned(), bytes: TRIED_BYTES };
    let pool = backend.create_pool(&spec).map_err(|error| error.to_string())?;
    let (memory, _) = pool.dma_buf(0, TRIED_BYTES).map_err(|error| error.to_string())?;
    Ok((memory, pool))
}

fn of(tried: &[Tried]) -> Finding {
    if tried.is_empty() {
        return Finding::ok(WHAT, "no GPU with memory of its own");
    }
    let line = |Tried { gpu, card, outcome }: &Tried| match (card, outcome) {
        (Some(card), Ok(())) => format!("{gpu} with {card}: works"),
        (None, Ok(())) => format!("{gpu}: exports memory, but there is no RDMA device"),
        // A card names itself.
        (_, Err(why)) => format!("{gpu}: {why}"),
    };
    let found = tried.iter().map(line).collect::<Vec<_>>().join("; ");
    match tried.iter().any(|tried| tried.outcome.is_ok()) {
        true => Finding::ok(WHAT, found),
        false => Finding::limited(
            WHAT,
            found,
            "none needed: messages of GPUs go to other hosts through host memory; docs/gpu-runs.md says what GPUDirect takes",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn each_gpu_is_reported_with_each_card_and_one_that_works_is_enough() {
        let tried = |card: Option<&str>, outcome: Result<(), &str>| {
            let (card, outcome) = (card.map(str::to_owned), outcome.map_err(str::to_owned));
            Tried { gpu: "cuda:0".to_owned(), card, outcome }
        };
        let none = of(&[]);
        assert!(none.verdict == Verdict::Ok && none.found.starts_with("no GPU"), "{none:?}");
        let alone = of(&[tried(None, Ok(()))]);
        assert!(alone.verdict == Verdict::Ok && alone.found.ends_with("no RDMA device"), "{alone:?}");
        let refused = of(&[tried(None, Err("too old"))]);
        assert!(refused.verdict == Verdict::Limited && refused.found == "cuda:0: too old", "{refused:?}");
        let one = of(&[tried(Some("a"), Err("a cannot")), tried(Some("b"), Ok(()))]);
        assert!(one.verdict == Verdict::Ok && one.found == "cuda:0: a cannot; cuda:0 with b: works", "{one:?}");
    }
}
