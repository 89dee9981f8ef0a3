//! A buffer: being filled, complete, or lost.
//!
//! ```text
//!   allocate ─▶ Filling ──first publication──▶ Complete (own block) ◀─ clones share it
//!                  ▲                             │
//!                  └──── a write: copied ────────┴── Complete (taken from another publisher) ◀─ receive
//!
//!   receive without bytes or for an unknown subscription, a device that fails at the publication ─▶ Lost: reads and writes fail
//! ```

use std::sync::{Arc, Mutex};

use rgaps::device::{Backend, Completion, PoolPart, Stream};
use rgaps::dlpack::{DLDevice, DeviceRange};
use rgaps::{Node, PoolBuffer};

use super::descriptor::Descriptor;
use super::gid::{Gid, lock};
use super::joins::Join;
use super::lane::Lane;
use super::payload::{BYTES_MAX, BufferError, Payload, Receiver};
use super::shared::{Shared, count};

/// The bytes of a ROS message in the pool: what is behind `rosidl::Buffer`. Usable from any thread.
#[derive(Debug)]
pub struct Buffer {
    of: Arc<Shared>,
    bytes: u64,
    content: Mutex<Content>,
}

#[derive(Debug)]
enum Content {
    Filling(Filling),
    Complete(Arc<Payload>),
    /// Its bytes cannot be read, for this reason. Also while `to_publish` changes the content.
    Lost(String),
}

/// A block that the program fills.
#[derive(Debug)]
struct Filling {
    of: Arc<Shared>,
    /// `None` only while it is ended.
    block: Option<PoolBuffer>,
    lane: Arc<Lane>,
    /// As many clones as there are writes that have not ended, and this one.
    writes: Arc<()>,
}

/// A read or write that has begun. It keeps its bytes, whatever becomes of the buffer.
#[derive(Debug)]
#[must_use = "end it, so that later work follows it"]
pub struct Access {
    /// The address of the bytes, for kernels of the program's device, or for the CPU if that is the host's device.
    pub address: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The device that has the address, in DLPack's terms.
    pub device: DLDevice,
    /// Keeps a block of this process.
    lane: Arc<Lane>,
    /// Keeps what was taken from another.
    _payload: Option<Arc<Payload>>,
    /// Of a write.
    _write: Option<Arc<()>>,
}

impl Access {
    /// Ends it: later work on the bytes follows the work that `stream` has so far, and they stay until that is done.
    pub fn end(self, stream: Option<&Stream>) -> Result<(), BufferError> {
        Ok(stream.map_or(Ok(()), |stream| self.lane.wait_for_stream(stream))?)
    }
}

impl Buffer {
    pub(super) fn filling(of: &Arc<Shared>, block: PoolBuffer) -> Result<Self, BufferError> {
        let filling = Filling { of: of.clone(), lane: of.lanes.get()?, block: Some(block), writes: Arc::default() };
        let bytes = filling.block().len() as u64;
        Ok(Self { of: of.clone(), bytes, content: Mutex::new(Content::Filling(filling)) })
    }

    /// See `Buffers::receive`. `asks`: what to join once the payload is taken, and the process that asks.
    pub(super) fn received(
        of: &Arc<Shared>,
        descriptor: &Descriptor,
        receiver: Option<Arc<Receiver>>,
        asks: Option<(u64, Join)>,
    ) -> Self {
        let Descriptor { handle, subscription, .. } = *descriptor;
        // A descriptor without a payload may say any length.
        let believed = receiver.as_ref().map_or(0, |receiver| receiver.largest());
        let content = match (of.lanes.get(), receiver) {
            (Err(error), _) => Content::Lost(error.to_string()),
            _ if descriptor.has_no_payload() => Content::Lost(unreached(subscription)),
            (_, None) => Content::Lost(format!(
                "this process has no subscription {subscription} with the topic of {}; the descriptor is another's, or replayed",
                descriptor.topic
            )),
            (Ok(_), Some(_)) if handle.payload_bytes > BYTES_MAX => {
                Content::Lost(format!("its descriptor names {} B; no message has so many", handle.payload_bytes))
            }
            (Ok(lane), Some(receiver)) => {
                Content::Complete(Payload::received(of.clone(), handle, asks, &receiver, lane))
            }
        };
        let mut bytes = if handle.payload_bytes <= BYTES_MAX { handle.payload_bytes } else { 0 };
        if let Content::Lost(_) = content {
            count(&of.counters.refused);
            bytes = if descriptor.has_no_payload() { bytes.min(believed) } else { 0 };
        }
        Self { of: of.clone(), bytes, content: Mutex::new(content) }
    }

    /// The node through which its payload goes.
    pub fn node(&self) -> &Node {
        &self.of.node
    }

    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether its payload cannot be read.
    pub fn is_lost(&self) -> bool {
        match &*lock(&self.content) {
            Content::Filling(_) => false,
            Content::Complete(payload) => payload.is_lost(),
            Content::Lost(_) => true,
        }
    }

    /// Begins a write by the CPU or by work of `stream`, which from now on follows all earlier work on the bytes. End it before the buffer is published.
    ///
    /// A buffer that is published already, came from a publisher, or shares its bytes with a clone is first copied on the device
    /// (`Statistics::copied`): what others read does not change.
    pub fn begin_write(&self, stream: Option<&Stream>) -> Result<Access, BufferError> {
        self.with_filling(|filling| {
            let begun = filling.access(stream, self.bytes)?;
            Ok(Access { _write: Some(filling.writes.clone()), ..begun })
        })
    }

    /// The block to fill: for a payload that must not change any more, a copy of it.
    fn with_filling<R>(&self, body: impl FnOnce(&mut Filling) -> Result<R, BufferError>) -> Result<R, BufferError> {
        let mut content = lock(&self.content);
        if let Content::Complete(payload) = &*content {
            *content = Content::Filling(copy_of(&self.of, payload, self.bytes)?);
        }
        match &mut *content {
            Content::Filling(filling) => body(filling),
            Content::Complete(_) => unreachable!("it was just replaced"),
            Content::Lost(why) => Err(BufferError::Lost(why.clone())),
        }
    }

    /// Begins a read by the CPU or by work of `stream`, which from now on follows the work that fills the bytes. Waits at most `ARRIVAL_TIMEOUT` for a payload
    /// that is later than its descriptor, and at most 10 s for the manager if the publisher's pool is not mapped yet.
    pub fn begin_read(&self, stream: Option<&Stream>) -> Result<Access, BufferError> {
        let payload = match &*lock(&self.content) {
            Content::Filling(filling) => return filling.access(stream, self.bytes),
            Content::Complete(payload) => payload.clone(),
            Content::Lost(why) => return Err(BufferError::Lost(why.clone())),
        };
        let (address, device) = payload.read_on(stream)?;
        Ok(Access {
            address,
            bytes: self.bytes,
            device,
            lane: payload.lane().clone(),
            _payload: Some(payload),
            _write: None,
        })
    }

    /// Copies bytes of host memory into all of it.
    pub fn copy_in(&self, from: &[u8]) -> Result<(), BufferError> {
        self.check_length(from.len())?;
        self.with_filling(|filling| filling.copy_in(from))
    }

    /// Copies all of it into host memory, after the work that fills it.
    pub fn copy_out(&self, to: &mut [u8]) -> Result<(), BufferError> {
        self.check_length(to.len())?;
        let payload = match &mut *lock(&self.content) {
            Content::Filling(filling) => return filling.copy_out(to),
            Content::Complete(payload) => payload.clone(),
            Content::Lost(why) => return Err(BufferError::Lost(why.clone())),
        };
        payload.copy_out(to)
    }

    /// Waits until the payload can be read: at most `ARRIVAL_TIMEOUT` if it is later than its descriptor, and at most 10 s for the manager if the publisher's
    /// pool is not mapped yet. An error if it cannot be read, or its publisher's device failed; `len` is then only what the descriptor says.
    pub fn await_payload(&self) -> Result<(), BufferError> {
        let payload = match &*lock(&self.content) {
            Content::Filling(_) => return Ok(()),
            Content::Complete(payload) => payload.clone(),
            Content::Lost(why) => return Err(BufferError::Lost(why.clone())),
        };
        payload.arrive()
    }

    /// As `await_payload`, for a publication: it does not wait again after that was in vain.
    pub(super) fn await_to_publish(&self) -> Result<(), BufferError> {
        let payload = match &*lock(&self.content) {
            Content::Filling(_) => return Ok(()),
            Content::Complete(payload) => payload.clone(),
            Content::Lost(why) => return Err(BufferError::Lost(why.clone())),
        };
        payload.arrive_to_publish()
    }

    /// All of it, in host memory.
    pub fn to_vec(&self) -> Result<Vec<u8>, BufferError> {
        self.await_payload()?;
        let mut bytes = vec![0; self.bytes as usize];
        self.copy_out(&mut bytes)?;
        Ok(bytes)
    }

    /// Another buffer with the same bytes. A payload that does not change any more is shared; one that is being filled is copied on the device.
    pub fn duplicate(&self) -> Result<Self, BufferError> {
        let content = match &mut *lock(&self.content) {
            Content::Filling(filling) => Content::Filling(filling.copy(self.bytes)?),
            Content::Complete(payload) => Content::Complete(payload.clone()),
            Content::Lost(why) => Content::Lost(why.clone()),
        };
        Ok(Self { of: self.of.clone(), bytes: self.bytes, content: Mutex::new(content) })
    }

    /// The payload in the process's own pool. Ends the filling; a payload of another process is copied on the device, once.
    pub(super) fn to_publish(&self) -> Result<Arc<Payload>, BufferError> {
        let mut content = lock(&self.content);
        if let Content::Complete(payload) = &*content {
            payload.arrive()?;
            if payload.is_own() {
                return Ok(payload.clone());
            }
            *content = Content::Filling(copy_of(&self.of, payload, self.bytes)?);
        }
        if let Content::Filling(filling) = &*content
            && Arc::strong_count(&filling.writes) > 1
        {
            return Err(BufferError::BeingWritten);
        }
        match std::mem::replace(
            &mut *content,
            Content::Lost("the device failed while its bytes were completed; allocate a new buffer".to_owned()),
        ) {
            Content::Filling(filling) => {
                let payload = Arc::new(filling.end()?);
                *content = Content::Complete(payload.clone());
                Ok(payload)
            }
            Content::Lost(why) => {
                *content = Content::Lost(why.clone());
                Err(BufferError::Lost(why))
            }
            Content::Complete(payload) => Ok(payload),
        }
    }

    fn check_length(&self, found: usize) -> Result<(), BufferError> {
        let (found, wanted) = (found as u64, self.bytes);
        if found == wanted { Ok(()) } else { Err(BufferError::Length { found, wanted }) }
    }
}

impl Filling {
    fn block(&self) -> &PoolBuffer {
        self.block.as_ref().unwrap_or_else(|| unreachable!("only `end` and `drop` take it"))
    }

    fn parts(&mut self) -> (&mut PoolBuffer, &Lane) {
        let block = self.block.as_mut().unwrap_or_else(|| unreachable!("only `end` and `drop` take it"));
        (block, &self.lane)
    }

    /// The memory for work of `stream`, which follows earlier work on it.
    fn access(&self, stream: Option<&Stream>, bytes: u64) -> Result<Access, BufferError> {
        match stream {
            Some(stream) => self.lane.delay_stream(stream)?,
            None => self.lane.synchronize()?,
        }
        let range = self.block().device_range().map_err(BufferError::Publish)?;
        let DeviceRange { address, device, .. } = range;
        Ok(Access { address, bytes, device, lane: self.lane.clone(), _payload: None, _write: None })
    }

    fn node(&self) -> &Node {
        &self.of.node
    }

    fn copy_in(&mut self, from: &[u8]) -> Result<(), BufferError> {
        let device = self.node().device().clone();
        let (block, lane) = self.parts();
        let _ordered_by_the_lane = device.copy_in(lane.stream(), from, block.part().map_err(BufferError::Publish)?)?;
        Ok(())
    }

    fn copy_out(&mut self, to: &mut [u8]) -> Result<(), BufferError> {
        let device = self.node().device().clone();
        let (block, lane) = self.parts();
        Ok(device.copy_out(lane.stream(), block.part().map_err(BufferError::Publish)?, to)?)
    }

    /// A copy in a block of its own.
    fn copy(&mut self, bytes: u64) -> Result<Self, BufferError> {
        let of = self.of.clone();
        let (block, lane) = self.parts();
        copied(&of, bytes, lane, |device, stream, to| {
            device.copy_across(stream, block.part().map_err(BufferError::Publish)?, to).map_err(BufferError::Device)
        })
    }

    /// Ends the filling.
    fn end(mut self) -> Result<Payload, BufferError> {
        let block = self.block.take().unwrap_or_else(|| unreachable!("only `end` and `drop` take it"));
        let frozen = block.freeze_on(self.lane.stream()).map_err(BufferError::Publish)?;
        Ok(Payload::own(self.of.clone(), frozen, self.lane.clone()))
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.lane.keep(block);
        }
    }
}

/// A copy of a payload, in a block of its own.
fn copy_of(of: &Arc<Shared>, payload: &Payload, bytes: u64) -> Result<Filling, BufferError> {
    payload.with_part(|part| {
        copied(of, bytes, payload.lane(), |device, stream, to| Ok(device.copy_across(stream, part, to)?))
    })
}

/// A copy that `copy` makes, in a block of its own. `lane` waits for the copy, since the original may be dropped then.
fn copied(
    of: &Arc<Shared>,
    bytes: u64,
    lane: &Lane,
    copy: impl FnOnce(&dyn Backend, &Stream, PoolPart<'_>) -> Result<Completion, BufferError>,
) -> Result<Filling, BufferError> {
    let pool = of.pool().map_err(BufferError::Pool)?;
    of.lanes.reap();
    let mut block = pool.allocate(bytes).map_err(BufferError::of_pool)?;
    let own = of.lanes.get()?;
    lane.delay_stream(own.stream())?;
    let copying = copy(of.node.device().as_ref(), own.stream(), block.part().map_err(BufferError::Publish)?);
    let result = copying.and_then(|_| Ok(lane.wait_for_stream(own.stream())?));
    let filling = Filling { of: of.clone(), block: Some(block), lane: own, writes: Arc::default() };
    result?;
    count(&of.counters.copied);
    Ok(filling)
}

fn unreached(subscription: Gid) -> String {
    format!(
        "the publisher sent no bytes: it does not reach subscription {subscription}, or could not read the message that it published again; if it is on another host, check the link (ros2 rgaps hosts)"
    )
}
