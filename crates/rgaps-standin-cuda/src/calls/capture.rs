//! Stream capture.

use crate::abi::{CAPTURE_INVALIDATED, INVALID_VALUE, Out};
use crate::calls::stream::find;
use crate::capture;
use crate::state::driver;

calls! {
    /// Begins a capture; work for the stream is refused until it ends.
    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) {
        let found = find(&*driver()?, stream)?;
        let is_possible = mode <= capture::RELAXED && found.id == stream && capture::begin(stream);
        if is_possible { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Ends the capture and returns a null graph. An error if the capture was invalidated.
    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) {
        match capture::end(stream).ok_or(INVALID_VALUE)? {
            true => Err(CAPTURE_INVALIDATED),
            false => graph.set(0),
        }
    }

    /// Whether the stream is being captured: 0 if not, 2 if the capture was invalidated.
    fn cuStreamIsCapturing(stream: u64, status: Out<u32>) {
        let found = find(&*driver()?, stream)?;
        status.set(capture::status(stream, found.id != stream)?)
    }

    /// Sets this thread's capture mode, and returns the previous one.
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let wanted = mode.get()?;
        if wanted > capture::RELAXED {
            return Err(INVALID_VALUE);
        }
        mode.set(capture::exchange(wanted))
    }
}
