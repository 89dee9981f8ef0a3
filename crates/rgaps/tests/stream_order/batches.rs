//! Batches on a GPU: what the CPU wrote is copied into all blocks before any of them is published.

use rgaps::types::Bytes;
use rgaps::{Loan, Origin, PublishAllError, PublishError};

use super::bench::{Bench, MIB, on_standin};

fn loans(bench: &Bench) -> Vec<Loan<Bytes>> {
    let loan = |byte| {
        let mut loan = bench.publisher.loan(Bytes::new(1000)).unwrap();
        loan.fill(byte);
        loan
    };
    (0..3).map(loan).collect()
}

/// The first byte of each message that is ready; all its bytes are equal.
fn taken(bench: &Bench) -> Vec<u8> {
    let batch = bench.subscriber.take_all().unwrap();
    assert!(batch.iter().all(|sample| sample.info().origin == Origin::Pushed));
    assert!(batch.iter().all(|sample| sample.bytes() == [sample.bytes()[0]; 1000]));
    batch.iter().map(|sample| sample.bytes()[0]).collect()
}

#[test]
fn a_batch_that_the_cpu_wrote_is_copied_to_the_gpu_and_published() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    assert_eq!(bench.publisher.publish_all(loans(&bench)).unwrap().len(), 3);
    assert_eq!(taken(&bench), [0, 1, 2]);
}

#[test]
fn a_batch_of_which_the_gpu_refuses_a_loan_is_not_published_and_the_others_can_be() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let batch = loans(&bench);
    bench.gpu.fail("cuMemcpyHtoDAsync_v2", 2, 999);
    let PublishAllError { published, index, source, rest } = bench.publisher.publish_all(batch).unwrap_err();
    assert!(matches!(*source, PublishError::Device { .. }), "{source}");
    assert_eq!((published.len(), index, rest.len()), (0, 1, 2));
    assert_eq!((taken(&bench), bench.publisher.statistics().published), (vec![], 0));
    bench.publisher.publish_all(rest).unwrap();
    assert_eq!(taken(&bench), [0, 2]);
    assert_eq!(bench.publisher.statistics().used_bytes, 0);
}
