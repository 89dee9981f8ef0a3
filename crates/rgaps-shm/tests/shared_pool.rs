//! A pool in which the ports of several topics allocate.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::sync::Arc;

use host::{Host, take};
use rgaps_os::Mapping;
use rgaps_shm::{
    Block, Exhaustion, FrozenBlock, LoanError, MessageInfo, MessageSpec, PublisherSpec, ReaderPort, SharedPool,
    WriterPort,
};

const BLOCK: u64 = 4096;

/// Two topics, each with a publisher in the same pool of four blocks.
struct Topics {
    memory: Mapping,
    pool: SharedPool,
    hosts: [Host; 2],
    ports: [WriterPort; 2],
    sequence: u64,
}

impl Topics {
    fn new() -> Self {
        let memory = Mapping::anonymous(4 * BLOCK).unwrap();
        let pool = SharedPool::new(memory.allocation_right().unwrap()).unwrap();
        let hosts = [Host::new(8), Host::new(8)];
        let ports = [0, 1].map(|of: usize| port(&hosts[of], &pool));
        Self { memory, pool, hosts, ports, sequence: 0 }
    }

    fn block(&self, fill: u8) -> Arc<FrozenBlock> {
        let mut block = self.pool.allocate(BLOCK).unwrap();
        self.memory.bytes_mut(block.range_mut()).unwrap().fill(fill);
        self.pool.freeze(block)
    }

    fn publish(&mut self, of: usize, block: &Arc<FrozenBlock>) {
        meet(&self.hosts[of], &mut self.ports[of]);
        let loan = self.ports[of].try_loan_frozen(block, Exhaustion::Refuse).unwrap();
        self.sequence += 1;
        let info = MessageInfo { publisher: 1, sequence: self.sequence, bytes: BLOCK, ..Default::default() };
        self.ports[of].publish(loan, &MessageSpec { info, meta: &[], history_depth: 0 }).unwrap();
    }

    fn used_blocks(&mut self) -> u64 {
        self.ports.iter_mut().for_each(WriterPort::reclaim);
        self.pool.stats().used_bytes / BLOCK
    }

    fn first_byte(&self, reader: &mut ReaderPort) -> u8 {
        let held = take(reader).expect("it was published");
        self.memory.shared(held.offset(), 1).unwrap().to_vec()[0]
    }
}

fn port(host: &Host, pool: &SharedPool) -> WriterPort {
    let spec = PublisherSpec { publisher: 1, messages: host.messages, ..Default::default() };
    let slot = host.slot_table.admit_publisher(&spec).unwrap();
    WriterPort::in_shared_pool(host.slot_table.segment().clone(), slot, pool.clone()).unwrap()
}

fn meet(host: &Host, port: &mut WriterPort) {
    for slot in host.slot_table.active_subscribers() {
        port.add_subscriber(host.slot_table.pages(slot).unwrap(), None);
    }
}

#[test]
fn a_block_on_two_topics_is_freed_when_both_have_released_it() {
    let mut topics = Topics::new();
    let mut readers = [0, 1].map(|of: usize| topics.hosts[of].subscriber(0));
    let block = topics.block(7);
    topics.publish(0, &block);
    topics.publish(1, &block);
    topics.publish(1, &block);
    drop(block);
    assert_eq!(topics.used_blocks(), 1);
    assert_eq!(topics.first_byte(&mut readers[0]), 7);
    assert_eq!(topics.first_byte(&mut readers[1]), 7);
    assert_eq!(topics.used_blocks(), 1, "the second message of the second topic is unread");
    assert_eq!(topics.first_byte(&mut readers[1]), 7);
    assert_eq!(topics.used_blocks(), 0);
}

#[test]
fn a_block_that_may_be_published_again_stays() {
    let mut topics = Topics::new();
    let block = topics.block(7);
    topics.publish(0, &block);
    assert_eq!(topics.used_blocks(), 1, "nobody reads it, but it may be published again");
    topics.publish(0, &block);
    drop(block);
    assert_eq!(topics.used_blocks(), 0);
}

#[test]
#[should_panic(expected = "a block of another pool is published")]
fn a_block_of_another_shared_pool_is_not_published() {
    let foreign = Topics::new().block(7);
    let _ = Topics::new().ports[0].try_loan_frozen(&foreign, Exhaustion::Refuse);
}

#[test]
#[should_panic(expected = "a block of another pool is published")]
fn a_shared_block_is_not_published_from_a_pool_of_one_publisher() {
    let topics = Topics::new();
    let mut own = topics.hosts[0].publisher(4 * BLOCK, 0);
    let _ = own.port.try_loan_frozen(&topics.block(7), Exhaustion::Refuse);
}

#[test]
fn what_is_not_published_is_given_back() {
    let mut topics = Topics::new();
    let block = topics.block(7);
    let loan = topics.ports[0].try_loan_frozen(&block, Exhaustion::Refuse).unwrap();
    drop(block);
    assert_eq!(topics.used_blocks(), 1);
    topics.ports[0].give_back(loan);
    assert_eq!(topics.used_blocks(), 0);
    // A description that is refused gives it back, too.
    let block = topics.block(7);
    let loan = topics.ports[0].try_loan_frozen(&block, Exhaustion::Refuse).unwrap();
    let info = MessageInfo { bytes: BLOCK + 1, ..Default::default() };
    topics.ports[0].publish(loan, &MessageSpec { info, meta: &[], history_depth: 0 }).unwrap_err();
    drop(block);
    assert_eq!(topics.used_blocks(), 0);
}

#[test]
fn a_publisher_that_leaves_does_not_free_what_is_still_read() {
    let mut topics = Topics::new();
    let mut reader = topics.hosts[0].subscriber(0);
    for fill in [7, 8] {
        let block = topics.block(fill);
        topics.publish(0, &block);
    }
    let held = take(&mut reader).unwrap();
    let slot = topics.ports[0].slot();
    let mut left = topics.ports[0].leave();
    topics.ports[0] = port(&topics.hosts[0], &topics.pool);
    topics.hosts[0].slot_table.drain_publisher(slot);
    let mut finish = || {
        let unfinished = topics.hosts[0].slot_table.finish_draining(slot);
        (unfinished, left.reclaim(), topics.pool.stats().used_bytes / BLOCK)
    };
    assert_eq!(finish(), (2, false, 2), "one is held, and one unread");
    let others: Vec<Block> = std::iter::from_fn(|| topics.pool.allocate(BLOCK).ok()).collect();
    assert_eq!(others.len(), 2);
    assert_eq!(topics.memory.shared(held.offset(), BLOCK).unwrap().to_vec(), vec![7; BLOCK as usize]);
    drop(held);
    assert_eq!(finish(), (1, false, 3));
    drop(take(&mut reader).unwrap());
    assert_eq!(finish(), (0, true, 2));
    others.into_iter().for_each(|block| topics.pool.free(block));
}

#[test]
fn a_loan_gives_up_messages_of_its_own_topic_if_that_makes_room() {
    let mut topics = Topics::new();
    let _readers = [0, 1].map(|of: usize| topics.hosts[of].subscriber(10));
    // Twice the same block on the first topic, and one that the second topic has, too.
    let (twice, both) = (topics.block(1), topics.block(2));
    topics.publish(0, &twice);
    topics.publish(0, &twice);
    topics.publish(0, &both);
    topics.publish(1, &both);
    drop((twice, both));
    let rest = [topics.pool.allocate(BLOCK).unwrap(), topics.pool.allocate(BLOCK).unwrap()];
    assert!(topics.ports[1].try_loan(BLOCK, Exhaustion::DropOldest).is_err(), "the first topic has its block, too");
    assert_eq!(topics.ports[1].outstanding(), 1, "nothing is given up in vain");
    let loan = topics.ports[0].try_loan(BLOCK, Exhaustion::DropOldest).unwrap();
    assert_eq!(topics.ports[0].outstanding(), 1, "both messages of the block were given up");
    topics.ports[0].give_back(loan);
    rest.into_iter().for_each(|block| topics.pool.free(block));
    assert_eq!(topics.used_blocks(), 1);
}

#[test]
fn entries_without_blocks_come_free_by_the_same_rules() {
    let mut topics = Topics::new();
    let mut reader = topics.hosts[0].subscriber(100);
    let block = topics.block(7);
    for _ in 0..8 {
        topics.publish(0, &block);
    }
    let refused = topics.ports[0].try_loan_frozen(&block, Exhaustion::Refuse).err();
    assert_eq!(refused, Some(LoanError::Messages(8)));
    let loan = topics.ports[0].try_loan_frozen(&block, Exhaustion::DropOldest).unwrap();
    topics.ports[0].give_back(loan);
    assert_eq!(host::sequences(&mut reader).len(), 7);
    assert_eq!(host::lost(&reader), 1);
}
