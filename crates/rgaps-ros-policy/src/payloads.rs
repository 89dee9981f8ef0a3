//! What becomes of descriptors: a sample, nothing, or a refusal, which is counted and logged. A client passes what its descriptor says and how to take
//! by handle, and gives its callback the sample.
//!
//! Bounds      A take by handle waits at most its time-out. Log lines: `refusals`.

use std::fmt;
use std::mem::{Discriminant, discriminant};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rgaps::{MessageHandle, TakeByHandleError, TakeError};

use crate::descriptor::{DescriptorError, Fault};
use crate::refusals::Refusals;

/// Where a line of the log belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// For debugging: an early descriptor, which is no fault.
    Debug,
    /// A refusal.
    Warning,
}

/// Why a descriptor's sample was not taken. The node goes on with the next one.
#[derive(Debug)]
pub enum Refusal {
    /// The descriptor contradicts itself.
    Descriptor {
        /// The topic.
        topic: String,
        /// What is wrong.
        source: DescriptorError,
    },
    /// The core cannot take the message.
    Take(TakeByHandleError),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor { topic, source } => write!(f, "{topic}: {source}"),
            Self::Take(source) => write!(f, "{source}"),
        }
    }
}

impl std::error::Error for Refusal {}

/// A kind of refusal: log lines of one publisher differ by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Of the descriptor.
    Descriptor(Fault),
    /// Of its handle.
    Handle(Discriminant<TakeByHandleError>),
    /// Of its message.
    Message(Discriminant<TakeError>),
    /// The client's own, by a number.
    Client(u32),
}

impl Refusal {
    fn reason(&self) -> Reason {
        match self {
            Self::Descriptor { source, .. } => Reason::Descriptor(source.fault),
            Self::Take(TakeByHandleError::Take(source)) => Reason::Message(discriminant(source)),
            Self::Take(source) => Reason::Handle(discriminant(source)),
        }
    }
}

/// The result for one descriptor.
#[derive(Debug)]
pub enum Taken<S> {
    /// Its sample.
    Sample(S),
    /// No sample, and no fault: the message was published before the subscriber existed, or the take was interrupted.
    Nothing,
    /// It is refused.
    Refused(Refusal),
}

/// Counters of descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Descriptors whose sample could not be taken.
    pub refused: u64,
    /// Descriptors of messages that were published before the subscriber existed.
    pub early: u64,
}

/// The descriptors of one subscription.
#[derive(Debug)]
pub struct Payloads {
    topic: String,
    timeout: Duration,
    refused: AtomicU64,
    early: AtomicU64,
    told: Mutex<Refusals<Reason>>,
}

impl Payloads {
    /// For a subscription to this fully qualified topic, whose takes by handle wait at most `timeout`.
    pub fn new(topic: &str, timeout: Duration) -> Self {
        let (refused, early, told) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
        Self { topic: topic.to_owned(), timeout, refused, early, told }
    }

    /// Takes the sample that a descriptor names, by `take`; its error `None` means that it was interrupted, which is no refusal. `log` gets at most
    /// one line.
    pub fn take<S>(
        &self,
        named: Result<MessageHandle, DescriptorError>,
        take: impl FnOnce(&MessageHandle, Duration) -> Result<S, Option<TakeByHandleError>>,
        log: impl FnOnce(Severity, &str),
    ) -> Taken<S> {
        // A malformed descriptor names no publisher that could be believed.
        let publisher = named.as_ref().map_or(0, |handle| handle.publisher);
        let topic = || self.topic.clone();
        let taken = match named {
            Ok(handle) => take(&handle, self.timeout).map_err(|error| error.map(Refusal::Take)),
            Err(source) => Err(Some(Refusal::Descriptor { topic: topic(), source })),
        };
        match taken {
            Ok(sample) => Taken::Sample(sample),
            Err(None) => Taken::Nothing,
            Err(Some(Refusal::Take(early @ TakeByHandleError::Early { .. }))) => {
                self.early.fetch_add(1, Ordering::Relaxed);
                log(Severity::Debug, &early.to_string());
                Taken::Nothing
            }
            Err(Some(refusal)) => {
                self.refuse(publisher, refusal.reason(), || refusal.to_string(), log);
                Taken::Refused(refusal)
            }
        }
    }

    /// Counts a refusal, and logs it if it is news.
    pub fn refuse(
        &self,
        publisher: u64,
        reason: Reason,
        text: impl FnOnce() -> String,
        log: impl FnOnce(Severity, &str),
    ) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = told.is_news(Instant::now(), publisher, reason);
        drop(told);
        if is_news {
            log(Severity::Warning, &text());
        }
    }

    /// Counters so far.
    pub fn counts(&self) -> Counts {
        Counts { refused: self.refused.load(Ordering::Relaxed), early: self.early.load(Ordering::Relaxed) }
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.topic
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::check_handle;
    use rgaps::dynamic::Kind;

    /// A subscription, and the lines that it logged.
    struct Bench {
        payloads: Payloads,
        lines: Mutex<Vec<(Severity, String)>>,
    }

    impl Bench {
        fn new() -> Self {
            Self { payloads: Payloads::new("/camera", Duration::from_millis(70)), lines: Mutex::default() }
        }

        fn log(&self, severity: Severity, text: &str) {
            self.lines.lock().unwrap().push((severity, text.to_owned()));
        }

        fn take(&self, publisher: u64, taken: Result<u32, Option<TakeByHandleError>>) -> Taken<u32> {
            let handle = MessageHandle { publisher, sequence: 3, ..MessageHandle::default() };
            let take = |named: &MessageHandle, timeout: Duration| {
                assert_eq!((*named, timeout), (handle, Duration::from_millis(70)));
                taken
            };
            self.payloads.take(Ok(handle), take, |severity, text| self.log(severity, text))
        }

        fn counts(&self) -> (u64, u64, usize) {
            let Counts { refused, early } = self.payloads.counts();
            (refused, early, self.lines.lock().unwrap().len())
        }
    }

    fn gone(publisher: u64) -> Option<TakeByHandleError> {
        Some(TakeByHandleError::Gone { topic: "/camera".to_owned(), publisher, sequence: 3 })
    }

    #[test]
    fn a_sample_is_given_and_nothing_is_counted() {
        let bench = Bench::new();
        assert!(matches!(bench.take(1, Ok(5)), Taken::Sample(5)));
        assert_eq!(bench.counts(), (0, 0, 0));
    }

    #[test]
    fn an_early_descriptor_is_counted_and_no_refusal() {
        let bench = Bench::new();
        let early = |publisher| TakeByHandleError::Early { topic: "/camera".to_owned(), publisher, sequence: 3 };
        assert!(matches!(bench.take(1, Err(Some(early(1)))), Taken::Nothing));
        assert_eq!(bench.counts(), (0, 1, 1));
        assert_eq!(bench.lines.lock().unwrap()[0].0, Severity::Debug);
    }

    #[test]
    fn an_interrupted_take_is_neither_early_nor_refused() {
        let bench = Bench::new();
        assert!(matches!(bench.take(1, Err(None)), Taken::Nothing));
        assert_eq!(bench.counts(), (0, 0, 0));
    }

    #[test]
    fn every_refusal_is_counted_and_each_publisher_and_reason_logged_once() {
        let bench = Bench::new();
        for publisher in [1, 1, 2, 1] {
            let Taken::Refused(why) = bench.take(publisher, Err(gone(publisher))) else { panic!("taken") };
            assert!(why.to_string().contains("is not this subscriber's"));
        }
        assert_eq!(bench.counts(), (4, 0, 2));
        let poisoned = || TakeError::Poisoned { topic: "/camera".to_owned(), sequence: 3 };
        let held = || TakeError::TooManyHeld { topic: "/camera".to_owned(), held: 9 };
        for error in [poisoned(), held(), poisoned(), held()] {
            bench.take(1, Err(Some(error.into())));
        }
        assert_eq!(bench.counts(), (8, 0, 4), "what is wrong with a message is a reason of its own");
        assert!(bench.lines.lock().unwrap().iter().all(|(severity, _)| *severity == Severity::Warning));
    }

    #[test]
    fn a_malformed_descriptor_is_refused_without_a_take_and_its_topic_named() {
        let bench = Bench::new();
        let take = |_: &MessageHandle, _: Duration| -> Result<(), Option<TakeByHandleError>> { panic!("taken") };
        for _ in 0..3 {
            let wrong = MessageHandle { layout_version: 7, ..MessageHandle::default() };
            let named = check_handle(Kind::Image, &wrong).map(|()| wrong);
            let taken = bench.payloads.take(named, take, |severity, text| bench.log(severity, text));
            assert!(matches!(taken, Taken::Refused(Refusal::Descriptor { .. })));
        }
        assert_eq!(bench.counts(), (3, 0, 1));
        let line = bench.lines.lock().unwrap()[0].1.clone();
        assert!(line.starts_with("/camera: a rgaps_msgs/msg/GpuImage has layout version 7"), "{line}");
    }

    #[test]
    fn a_clients_own_refusal_is_logged_once_too() {
        let bench = Bench::new();
        for code in [16, 16, 9] {
            let text = || "no payload subscription".to_owned();
            bench.payloads.refuse(1, Reason::Client(code), text, |severity, text| bench.log(severity, text));
        }
        assert_eq!(bench.counts(), (3, 0, 2));
    }
}
