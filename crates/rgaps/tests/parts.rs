//! Parts of loans and samples give the device's copies access to their own bytes, and to nothing else in the pool.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::time::Duration;

use rgaps::Node;
use rgaps::types::Bytes;
use rgaps_testing::{RuntimeDir, again_with, programs};

/// Runs the test again in a new process, whose nodes start their managers.
fn again() -> bool {
    let rgapsd = programs::find("rgapsd");
    again_with(
        &[("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "host")],
        |_| Ok(()),
    )
}

#[test]
fn a_part_of_a_loan_or_a_sample_gives_no_access_to_other_messages() {
    if !again() {
        return;
    }
    const BYTES: usize = 256;
    let dir = RuntimeDir::new("parts").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let (device, stream) = (node.device().clone(), node.device().stream().unwrap());
    let publisher = node.publisher::<Bytes>("a").unwrap();
    let subscriber = node.subscriber::<Bytes>("a").unwrap();
    let mut loans: Vec<_> = (0..3).map(|_| publisher.loan(Bytes::new(BYTES as u64)).unwrap()).collect();
    for (loan, byte) in loans.iter_mut().zip(1..) {
        loan.fill(byte);
    }
    // Bytes after the block.
    assert!(device.copy_in(&stream, &[9; 2 * BYTES], loans[0].part().unwrap()).is_err());
    assert!(device.copy_out(&stream, loans[0].part().unwrap(), &mut [0; 2 * BYTES]).is_err());
    for (loan, byte) in loans.iter().zip(1..) {
        assert_eq!(&loan[..], &[byte; BYTES], "copies into one loan are in no other");
    }
    device.copy_in(&stream, &[7; BYTES], loans[0].part().unwrap()).unwrap().wait(Duration::ZERO).unwrap();
    assert_eq!(&loans[0][..], &[7; BYTES]);
    loans.remove(0).publish().unwrap();
    let sample = subscriber.take().unwrap().unwrap();
    assert!(device.copy_in(&stream, &[9], sample.part().unwrap()).is_err(), "a sample is for reading");
    assert!(device.copy_out(&stream, sample.part().unwrap(), &mut [0; 2 * BYTES]).is_err());
    let mut found = [0; BYTES];
    device.copy_out(&stream, sample.part().unwrap(), &mut found).unwrap();
    assert_eq!((&found, sample.bytes()), (&[7; BYTES], &[7; BYTES][..]));
}
