//! Copies under way on one stream, in the order in which they were started.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::DeviceError;
use crate::stream::Completion;

/// A bounded queue of copies under way. Each has an item that tells the caller what to do next (release a span of a ring, send a chunk).
#[derive(Debug)]
pub struct InFlight<T> {
    queue: VecDeque<(Completion, T)>,
    most: usize,
}

impl<T> InFlight<T> {
    /// Allocates room for `most` copies (at least 1) now, so that no copy allocates.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { queue: VecDeque::with_capacity(most), most }
    }

    /// Whether another copy may be started.
    pub fn has_room(&self) -> bool {
        self.queue.len() < self.most
    }

    /// Copies under way.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no copy is under way.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a copy that was started. Returns both arguments if the queue is full: wait for a copy first.
    pub fn push(&mut self, completion: Completion, item: T) -> Result<(), (Completion, T)> {
        if !self.has_room() {
            return Err((completion, item));
        }
        self.queue.push_back((completion, item));
        Ok(())
    }

    /// Removes the oldest copy if it is over, and returns its item. After a device failure the copy stays in the queue.
    pub fn poll(&mut self) -> Result<Option<T>, DeviceError> {
        match self.queue.front() {
            Some((completion, _)) if completion.query()? => Ok(self.queue.pop_front().map(|(_, item)| item)),
            _ => Ok(None),
        }
    }

    /// Waits until the oldest copy is complete and leaves it in the queue. Returns at once if there is none.
    pub fn wait_for_oldest(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.queue.front().map_or(Ok(()), |(completion, _)| completion.wait(timeout))
    }

    /// Waits for the oldest copy, removes it and returns its item. `None`: no copy is under way.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<T>, DeviceError> {
        if let Some((completion, _)) = self.queue.front() {
            completion.wait(timeout)?;
        }
        Ok(self.queue.pop_front().map(|(_, item)| item))
    }
}
