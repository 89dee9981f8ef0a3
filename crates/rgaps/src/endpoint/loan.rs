//! A loan without its type.

use std::sync::Arc;

use rgaps_device::dlpack::DLDevice;
use rgaps_device::{Backend, DeviceRange, PoolMemory, PoolPart, Stream};
use rgaps_shm::{LoanedMessage, Origin};

use crate::endpoint::encode::Encode;
use crate::endpoint::filling::Filling;
use crate::endpoint::publish_error::PublishError;
use crate::endpoint::publisher::{Filled, PublisherInner};
use crate::handle::MessageHandle;

/// A loan of any type.
#[derive(Debug)]
pub(crate) struct LoanInner {
    pub(crate) publisher: Arc<PublisherInner>,
    message: Option<LoanedMessage>,
    bytes: u64,
    filling: Filling,
}

impl LoanInner {
    /// Loans a block for the bytes that `meta` describes.
    pub(crate) fn new(publisher: &Arc<PublisherInner>, meta: &dyn Encode) -> Result<Self, PublishError> {
        let bytes = publisher.bytes_of(meta)?;
        let (publisher, message) = (publisher.clone(), Some(publisher.loan(bytes)?));
        Ok(Self { publisher, message, bytes, filling: Filling::default() })
    }

    /// Publishes it: in stream order if there is a stream.
    pub(crate) fn publish(mut self, meta: &dyn Encode, stream: Option<&Stream>) -> Result<MessageHandle, PublishError> {
        self.publisher.check_attached()?;
        if stream.is_some() {
            self.publisher.check_order()?;
        }
        let (message, filled) = self.complete(stream)?;
        self.publisher.publish(message, meta, filled, stream)
    }

    /// Publishes it as pushed.
    pub(crate) fn push(mut self, meta: &dyn Encode) -> Result<MessageHandle, PublishError> {
        let (message, filled) = self.complete(None)?;
        self.publisher.publish(message, meta, Filled { origin: Origin::Pushed, ..filled }, None)
    }

    /// Fills the block, and takes the message out of the loan.
    fn complete(&mut self, stream: Option<&Stream>) -> Result<(LoanedMessage, Filled), PublishError> {
        self.fill_block(stream)?;
        Ok(self.take_filled())
    }

    /// Copies what was filled beside the block into it. After an error the loan is over, and its block is given back when that is safe.
    pub(crate) fn fill_block(&mut self, stream: Option<&Stream>) -> Result<(), PublishError> {
        let Some(mut message) = self.message.take() else { unreachable!("only publish and drop take it") };
        let filled = match message.block_mut() {
            Some(block) => self.filling.complete(&self.publisher, block, self.bytes, stream),
            None => Ok(()),
        };
        match filled {
            Ok(()) => {
                self.message = Some(message);
                Ok(())
            }
            Err(error) => Err(self.publisher.not_filled(message, stream, error)),
        }
    }

    /// The loaned message after `fill_block`, and how its bytes came there. The loan is over.
    pub(crate) fn take_filled(&mut self) -> (LoanedMessage, Filled) {
        let Some(message) = self.message.take() else { unreachable!("only publish and drop take it") };
        let origin = if self.filling.is_in_place() { Origin::Loaned } else { Origin::Pushed };
        (message, Filled { bytes: self.bytes, origin })
    }

    /// The block's pool, or the memory that is filled instead of it (`device_address`).
    pub(crate) fn memory(&self) -> Arc<dyn PoolMemory> {
        self.filling.beside().unwrap_or(&self.publisher.pool).clone()
    }

    /// See `Loan::device_address`.
    pub(crate) fn device_address(&self) -> Result<u64, PublishError> {
        let (pool, offset) = self.place()?;
        let failed = |source| PublishError::Block { topic: self.publisher.topic.clone(), source };
        pool.device_address(offset).map_err(failed)
    }

    /// See `Loan::device_range`.
    pub(crate) fn device_range(&self) -> Result<DeviceRange, PublishError> {
        // A block without bytes has no address.
        let address = if self.bytes > 0 { self.device_address()? } else { 0 };
        let device = dl_device(self.publisher.node.backend().as_ref());
        Ok(DeviceRange { address, bytes: self.bytes, device, is_read_only: false })
    }

    /// See `Loan::part`.
    pub(crate) fn part(&mut self) -> Result<PoolPart<'_>, PublishError> {
        let (pool, offset) = self.place()?;
        Ok(PoolPart::to_fill(pool, offset, self.bytes))
    }

    fn place(&self) -> Result<(&dyn PoolMemory, u64), PublishError> {
        let offset = self.message.as_ref().map_or(0, LoanedMessage::offset);
        self.filling.place(&self.publisher, offset, self.bytes)
    }

    /// Checks metadata that is to replace that of the loan.
    pub(crate) fn check(&self, meta: &dyn Encode) -> Result<(), PublishError> {
        meta.check_against(self.bytes).map_err(|source| self.publisher.metadata(source))
    }

    /// The block for the CPU, read-only. Empty in a forked child.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.message.as_ref().filter(|_| self.publisher.node.is_owner()) {
            Some(message) => self.filling.bytes(&self.publisher, message.block(), self.bytes),
            None => &[],
        }
    }

    /// The block for the CPU. Empty in a forked child.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let message = self.message.as_mut().filter(|_| self.publisher.node.is_owner());
        match message.and_then(LoanedMessage::block_mut) {
            Some(block) => self.filling.bytes_mut(&self.publisher, block, self.bytes),
            None => &mut [],
        }
    }
}

impl Drop for LoanInner {
    fn drop(&mut self) {
        // In a forked child nothing is mapped, and only the parent may give the block back.
        if let Some(message) = self.message.take().filter(|_| self.publisher.node.is_owner()) {
            self.publisher.port().give_back(message);
        }
    }
}

/// The device of a backend in DLPack's terms.
pub(crate) fn dl_device(backend: &dyn Backend) -> DLDevice {
    backend.as_cuda().map_or(DLDevice::CPU, |cuda| DLDevice::cuda(cuda.gpu().properties().ordinal))
}
