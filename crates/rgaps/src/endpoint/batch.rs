//! Publishing several loans with one wake-up.
//!
//! 1. All loans must be this publisher's, and the publisher must have its slot.
//! 2. Metadata is encoded, which runs the program's code, and what the CPU wrote beside blocks that it cannot map is copied into them, which may
//!    wait for a device: both before the port is locked, and before any publication.
//! 3. All loans are published under one lock, so that their sequences follow each other. Then the subscribers are woken.
//!
//! A failure of the first two steps publishes nothing. One of the third step, of a damaged topic or a lost slot, ends the batch there.

use std::sync::Arc;

use rgaps_shm::layout::META_BYTES_MAX;

use crate::endpoint::encode::Encode;
use crate::endpoint::loan::LoanInner;
use crate::endpoint::publish_error::{PublishAllError, PublishError};
use crate::endpoint::publisher::{Described, PublisherInner};
use crate::handle::MessageHandle;

/// Room for most metadata, so that a batch's grows seldom.
const TYPICAL_META_BYTES: usize = 128;

/// A loan with its metadata, of a type that is known at compile time or at run time.
pub(crate) trait AnyLoan {
    fn inner(&self) -> &LoanInner;
    fn inner_mut(&mut self) -> &mut LoanInner;
    fn encode(&self) -> &dyn Encode;
}

/// See `Publisher::publish_all`.
pub(crate) fn publish_all<L: AnyLoan>(
    publisher: &Arc<PublisherInner>,
    mut loans: Vec<L>,
) -> Result<Vec<MessageHandle>, PublishAllError<L>> {
    if let Some((index, source)) = obstacle(publisher, &loans) {
        return Err(PublishAllError { published: Vec::new(), index, source: Box::new(source), rest: loans });
    }
    let mut metas = Vec::with_capacity(loans.len() * TYPICAL_META_BYTES);
    let mut ends = Vec::with_capacity(loans.len());
    for loan in &loans {
        let mut encoded = [0; META_BYTES_MAX];
        let meta_bytes = loan.encode().encode_into(&mut encoded);
        metas.extend_from_slice(&encoded[..meta_bytes]);
        ends.push(metas.len());
    }
    for index in 0..loans.len() {
        if let Err(source) = loans[index].inner_mut().fill_block(None) {
            // Its block is given back.
            loans.remove(index);
            return Err(PublishAllError { published: Vec::new(), index, source: Box::new(source), rest: loans });
        }
    }
    let mut published = Vec::with_capacity(loans.len());
    let mut failed = None;
    let mut begin = 0;
    let mut port = publisher.port();
    let mut batch = port.batch();
    for (loan, end) in loans.iter_mut().zip(ends) {
        let kind = loan.encode().code();
        let (message, outcome) = loan.inner_mut().take_filled();
        let described = Described { kind, meta: &metas[begin..end], outcome };
        begin = end;
        match publisher.publish_in(&mut batch, message, &described) {
            Ok(handle) => published.push(handle),
            Err(source) => {
                failed = Some(Box::new(source));
                break;
            }
        }
    }
    // Wakes the subscribers.
    drop(batch);
    // A reader of the log may use the publisher, and a loan that is dropped does.
    drop(port);
    published.iter().for_each(|handle| publisher.log(handle));
    let Some(source) = failed else { return Ok(published) };
    let index = published.len();
    Err(PublishAllError { published, index, source, rest: loans.split_off(index + 1) })
}

/// What makes the whole batch impossible: the place of a loan, and why.
fn obstacle<L: AnyLoan>(publisher: &Arc<PublisherInner>, loans: &[L]) -> Option<(usize, PublishError)> {
    if let Err(source) = publisher.check_attached() {
        return Some((0, source));
    }
    let is_foreign = |loan: &L| !Arc::ptr_eq(&loan.inner().publisher, publisher);
    let index = loans.iter().position(is_foreign)?;
    let (topic, other) = (publisher.topic.clone(), loans[index].inner().publisher.topic.clone());
    Some((index, PublishError::AnotherPublisher { topic, other }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use rgaps_shm::PublisherSlot;
    use rgaps_shm::layout::SlotState;
    use rgaps_testing::{RuntimeDir, Watchdog, manager, programs};

    use super::*;
    use crate::types::Bytes;
    use crate::{Loan, Node};

    /// A loan that runs `trap` after it is filled, when it is about to be published.
    struct Trapped<'a> {
        loan: Loan<Bytes>,
        trap: &'a dyn Fn(),
        is_filled: bool,
    }

    impl AnyLoan for Trapped<'_> {
        fn inner(&self) -> &LoanInner {
            self.loan.inner()
        }

        fn inner_mut(&mut self) -> &mut LoanInner {
            if std::mem::replace(&mut self.is_filled, true) {
                (self.trap)();
            }
            self.loan.inner_mut()
        }

        fn encode(&self) -> &dyn Encode {
            self.loan.encode()
        }
    }

    #[test]
    fn a_slot_lost_in_the_middle_of_a_batch_ends_it_there_and_the_rest_is_returned() {
        let _watchdog = Watchdog::new(Duration::from_secs(60));
        let dir = RuntimeDir::new("batch").unwrap();
        let mut command = std::process::Command::new(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
        let _manager = manager::start(&dir, command).unwrap();
        let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
        let publisher = node.publisher::<Bytes>("a").unwrap();
        let subscriber = node.subscriber::<Bytes>("a").unwrap();
        let loan = |byte| {
            let mut loan = publisher.loan(Bytes::new(10)).unwrap();
            loan.fill(byte);
            loan
        };
        let inner = loan(0).inner().publisher.clone();
        let PublisherSlot { index, generation } = inner.attachment.slot;
        let state = &inner.attachment.segment.publisher(index).unwrap().state;
        let nothing = || ();
        let lose = || state.store(SlotState::Draining.word(generation), Ordering::Release);
        let trapped = |byte: u8| {
            let trap: &dyn Fn() = if byte == 2 { &lose } else { &nothing };
            Trapped { loan: loan(byte), trap, is_filled: false }
        };
        let PublishAllError { published, index, source, rest } =
            publish_all(&inner, (0..5).map(trapped).collect()).err().unwrap();
        assert!(matches!(*source, PublishError::CutOff { .. }), "{source}");
        assert_eq!((published.len(), index), (2, 2));
        let taken = || -> Vec<u8> { subscriber.take_all().unwrap().iter().map(|sample| sample.bytes()[0]).collect() };
        assert_eq!(taken(), [0, 1]);

        // As if it had never lost the slot: the rest is there, and the one that failed is given back.
        state.store(SlotState::Active.word(generation), Ordering::Release);
        assert_eq!(rest.iter().map(|loan| loan.loan[0]).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(publish_all(&inner, rest).ok().unwrap().len(), 2);
        assert_eq!(taken(), [3, 4]);
        // Once the node's thread has told the publisher where the subscriber's words are; the watchdog limits the wait.
        while publisher.statistics().used_bytes > 0 {
            std::thread::yield_now();
        }
    }
}
