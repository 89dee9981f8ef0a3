//! A taken message of whichever kind, which several may hold: its taker, and array libraries that were given views of it.
//!
//! Invariants  H1 the message is let go once, when the last holder has let go. H2 it is let go behind the work of every stream that a holder
//!             let go on, wherever that holder came in the order.

use std::sync::{Arc, Mutex, PoisonError};

use rgaps_device::dlpack::ManagedTensor;
use rgaps_device::{DeviceError, DeviceRange, Stream};
use rgaps_shm::MessageInfo;
use rgaps_shm::message::Readiness;

use super::{AnyMeta, Kind, another_kind, by_kind};
use crate::dlpack::Descriptor;
use crate::frame::Frame;
use crate::handle::Handle;
use crate::node::{DEVICE_TIMEOUT, NodeInner};
use crate::order::Place;
use crate::subscriber::TakeError;
use crate::types::{Bytes, Image, PointCloud, Tensor};

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Boxed with what its holders share.
pub(super) enum AnyFrame {
    Bytes(Frame<Bytes>),
    Image(Frame<Image>),
    PointCloud(Frame<PointCloud>),
    Tensor(Frame<Tensor>),
}

macro_rules! from_frame {
    ($($kind:ident),*) => {$(
        impl From<Frame<$kind>> for AnyFrame {
            fn from(frame: Frame<$kind>) -> Self {
                Self::$kind(frame)
            }
        }
    )*};
}
from_frame!(Bytes, Image, PointCloud, Tensor);

impl AnyFrame {
    fn release_behind(self, stream: &Stream, others: Vec<Place>) -> Result<(), TakeError> {
        by_kind!(Self, self, frame => frame.release_behind(stream, others))
    }

    fn node(&self) -> &NodeInner {
        by_kind!(Self, self, frame => frame.node())
    }

    fn taken_on(&self) -> Option<&Stream> {
        by_kind!(Self, self, frame => frame.taken_on())
    }

    fn device_error(&self, source: DeviceError) -> TakeError {
        by_kind!(Self, self, frame => frame.device_error(source))
    }
}

/// What the holders of a message share.
#[derive(Debug)]
struct Shared {
    /// Taken when it is let go.
    frame: Option<AnyFrame>,
    /// Work of streams on which holders let go before the last one did.
    behind: Mutex<Vec<Place>>,
}

impl Shared {
    fn let_go_behind(&self, stream: &Stream) {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).push(Place::of(stream));
    }

    /// The last holder's, on a stream of its own or on whichever there is.
    fn let_go(&mut self, stream: Option<&Stream>) -> Result<(), TakeError> {
        let Some(frame) = self.frame.take() else { return Ok(()) };
        let behind = std::mem::take(self.behind.get_mut().unwrap_or_else(PoisonError::into_inner));
        // A forked child has neither streams nor the segment: the frame's own drop knows.
        if !frame.node().is_owner() || (behind.is_empty() && stream.is_none()) {
            return Ok(());
        }
        let stream = stream.or(frame.taken_on()).cloned().or_else(|| frame.node().own_stream().ok());
        let stream = stream.or_else(|| behind.last().map(|place| place.stream().clone()));
        stream.map_or(Ok(()), |stream| frame.release_behind(&stream, behind))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = self.let_go(None) {
            tracing::error!(%error, "a message could not be let go in stream order");
        }
    }
}

/// A taken message. Cheap to clone; it is let go when the last clone and the last tensor made of it are gone.
///
/// Behind which work: that of each stream that a holder released it on, and, if the last holder is dropped, that of the stream that it was
/// taken on. A clone that is dropped before says nothing of streams: what a stream reads through it is released there.
#[derive(Clone, Debug)]
pub struct Message(Arc<Shared>);

impl Message {
    pub(super) fn new(frame: AnyFrame) -> Self {
        Self(Arc::new(Shared { frame: Some(frame), behind: Mutex::default() }))
    }

    fn frame(&self) -> &AnyFrame {
        match &self.0.frame {
            Some(frame) => frame,
            None => unreachable!("only the last holder takes it"),
        }
    }

    /// Which kind.
    pub fn kind(&self) -> Kind {
        self.meta().kind()
    }

    /// The typed metadata.
    pub fn meta(&self) -> AnyMeta {
        by_kind!(AnyFrame, self.frame(), frame => (*frame.meta()).into())
    }

    /// As `Frame::to_host`.
    pub fn to_host(&self) -> Result<&[u8], TakeError> {
        by_kind!(AnyFrame, self.frame(), frame => frame.to_host())
    }

    /// As `Frame::is_in_place`.
    pub fn is_in_place(&self) -> bool {
        by_kind!(AnyFrame, self.frame(), frame => frame.is_in_place())
    }

    /// As `Frame::device_range`.
    pub fn device_range(&self) -> Result<DeviceRange, TakeError> {
        by_kind!(AnyFrame, self.frame(), frame => frame.device_range())
    }

    /// As `Frame::status`.
    pub fn status(&self) -> Readiness {
        by_kind!(AnyFrame, self.frame(), frame => frame.status())
    }

    /// As `Frame::info`.
    pub fn info(&self) -> &MessageInfo {
        by_kind!(AnyFrame, self.frame(), frame => frame.info())
    }

    /// As `Frame::handle`.
    pub fn handle(&self) -> Handle {
        by_kind!(AnyFrame, self.frame(), frame => frame.handle())
    }

    /// As `Frame::taken_ns`.
    pub fn taken_ns(&self) -> u64 {
        by_kind!(AnyFrame, self.frame(), frame => frame.taken_ns())
    }

    /// As `Frame::mapped_from`.
    pub fn mapped_from(&self) -> ((u64, u64), u64) {
        by_kind!(AnyFrame, self.frame(), frame => frame.mapped_from())
    }

    /// As `Frame::describe`.
    pub fn describe(&self) -> Result<Descriptor, TakeError> {
        by_kind!(AnyFrame, self.frame(), frame => frame.describe())
    }

    /// One field of a cloud, as `Frame::describe_field`.
    pub fn describe_field(&self, name: &str) -> Result<Descriptor, TakeError> {
        match self.frame() {
            AnyFrame::PointCloud(frame) => frame.describe_field(name),
            other => {
                let source = another_kind(Kind::PointCloud, self.kind()).into();
                Err(by_kind!(AnyFrame, other, frame => frame.view_error(source)))
            }
        }
    }

    /// What `describe` or `describe_field` described, as a tensor for an array library that works in the order of `stream`: the stream waits
    /// for the bytes if another one was to. The tensor holds the message; its deleter lets go behind the stream's work by then, so the stream
    /// must live until then.
    pub fn to_dlpack(&self, described: &Descriptor, stream: Option<&Stream>) -> Result<ManagedTensor, TakeError> {
        if let (Some(taken), Some(stream)) = (self.frame().taken_on(), stream) {
            let waiting = stream.wait(&taken.record(), DEVICE_TIMEOUT);
            waiting.map_err(|source| self.frame().device_error(source))?;
        }
        Ok(described.manage(Viewer { message: Some(self.clone()), stream: stream.cloned() }))
    }

    /// Lets go, of this clone, behind the work given to the stream so far. The call does not wait for it.
    pub fn release_on(self, stream: &Stream) -> Result<(), TakeError> {
        match Arc::try_unwrap(self.0) {
            Ok(mut shared) => shared.let_go(Some(stream)),
            Err(shared) => {
                shared.let_go_behind(stream);
                Ok(())
            }
        }
    }
}

/// An array library's hold of a message.
#[derive(Debug)]
struct Viewer {
    message: Option<Message>,
    stream: Option<Stream>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let (Some(message), Some(stream)) = (self.message.take(), &self.stream) else { return };
        if !message.frame().node().is_owner() {
            return;
        }
        if let Err(error) = message.release_on(stream) {
            tracing::error!(%error, "a view could not be let go in stream order");
        }
    }
}
