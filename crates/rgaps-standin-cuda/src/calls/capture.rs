//! Capturing the work of a stream into a graph.

use crate::abi::{CAPTURE_INVALIDATED, INVALID_VALUE, Out};
use crate::calls::stream::find;
use crate::capture;
use crate::state::driver;

calls! {
    /// What is given to the stream is refused until the capture ends.
    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) {
        let found = find(&*driver()?, stream)?;
        let is_possible = mode <= capture::RELAXED && found.id == stream && capture::begin(stream);
        if is_possible { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Ends the capture, with a graph of nothing: null. An error if something has spoilt it.
    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) {
        match capture::end(stream).ok_or(INVALID_VALUE)? {
            true => Err(CAPTURE_INVALIDATED),
            false => graph.set(0),
        }
    }

    /// Whether the stream is captured: 0 if not, 2 if that was spoilt.
    fn cuStreamIsCapturing(stream: u64, status: Out<u32>) {
        let found = find(&*driver()?, stream)?;
        status.set(capture::status(stream, found.id != stream)?)
    }

    /// Sets what captures of other threads mean for this one's calls, and tells what they meant.
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let wanted = mode.get()?;
        if wanted > capture::RELAXED {
            return Err(INVALID_VALUE);
        }
        mode.set(capture::exchange(wanted))
    }
}
