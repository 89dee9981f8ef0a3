//! A port in a pool that it shares with others (shared_pool.rs).

use std::sync::Arc;

use crate::crash;
use crate::segment::Segment;
use crate::slot::PublisherSlot;
use crate::writer::port::{EntryBlock, LoanedMessage, Outstanding, WriterPort};
use crate::writer::shared_pool::{Allocator, FrozenBlock, LeftMessages, MessageBlock, SharedPool};
use crate::writer::space::{Exhaustion, LoanError, PortError, Wanted};

impl WriterPort {
    /// Like `new`, for a slot whose subscribers read this pool, which other ports of this process allocate in, too.
    pub fn in_shared_pool(segment: Arc<Segment>, slot: PublisherSlot, pool: SharedPool) -> Result<Self, PortError> {
        Self::with(segment, slot, || Ok(Allocator::Shared(pool)))
    }

    /// Loans an entry for a message whose payload is this block, which other messages may have, too. The caller waits as with `try_loan`.
    ///
    /// # Panics
    /// If the block is of another pool than the port's (`shared_pool`): subscribers would read other bytes.
    pub fn try_loan_frozen(
        &mut self,
        block: &Arc<FrozenBlock>,
        exhaustion: Exhaustion,
    ) -> Result<LoanedMessage, LoanError> {
        assert!(self.shared_pool().is_some_and(|pool| block.pool().is(pool)), "a block of another pool is published");
        self.check()?;
        let message = self.try_with(Wanted::Entry, exhaustion, |port| {
            let message = port.entry()?;
            crash::point("loan.entry");
            Ok(message)
        })?;
        Ok(LoanedMessage { message, block: MessageBlock::Frozen(block.clone()) })
    }

    /// Loans a block if there is one, after freeing what nobody needs: gives up nothing, not even history.
    pub fn try_loan_unneeded(&mut self, bytes: u64) -> Result<LoanedMessage, LoanError> {
        self.check()?;
        self.reclaim();
        self.try_once(bytes)
    }

    /// The pool, if other ports of this process allocate in it, too.
    pub fn shared_pool(&self) -> Option<&SharedPool> {
        match &self.allocator {
            Allocator::Own(_) => None,
            Allocator::Shared(pool) => Some(pool),
        }
    }

    /// The messages of a shared pool that subscribers still need, for a publisher that is about to give up its slot: the manager frees their entries.
    pub fn leave(&mut self) -> LeftMessages {
        self.reclaim();
        let outstanding = std::mem::take(&mut self.outstanding);
        let left = outstanding.into_iter().filter_map(|Outstanding { message, .. }| {
            let place = self.place(message.index);
            match std::mem::replace(&mut self.blocks[place], EntryBlock::None) {
                EntryBlock::Published(MessageBlock::Frozen(block)) => Some((message, block)),
                _ => None,
            }
        });
        let left = left.collect();
        LeftMessages::new(self.segment.clone(), left)
    }
}
