//! Results of calls: a status for the program and a text for people. Each thread keeps its last failure.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rgaps::device::{DescriptionError, DeviceError};
use rgaps::dynamic::UnknownKind;
use rgaps::text::plain_lines;
use rgaps::types::{MetaError, UnknownEncoding, ViewError};
use rgaps::{LoanError, NodeError, PublishError, Refusal, SessionError, TakeByHandleError, TakeError};

use crate::handle::BadHandle;

/// The result of a call. Outputs are unchanged unless it is `RGAPS_OK`, except those of `rgaps_publisher_publish_all`. `rgaps_error_text` has the
/// details of all others but `RGAPS_NO_MESSAGE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum rgaps_status_t {
    /// Success.
    RGAPS_OK = 0,
    /// No message is ready. Not an error.
    RGAPS_NO_MESSAGE = 1,
    /// The time-out expired.
    RGAPS_TIMED_OUT = 2,
    /// An argument is NULL but must not be, contradicts itself, or is out of range.
    RGAPS_INVALID_ARGUMENT = 3,
    /// A handle is NULL, released, of another kind of object, or not a handle.
    RGAPS_INVALID_HANDLE = 4,
    /// The program and the library, or two programs, have different versions.
    RGAPS_WRONG_VERSION = 5,
    /// The message, metadata, topic or call are not of the same kind.
    RGAPS_WRONG_KIND = 6,
    /// The pool or the message table is full. Release messages or make the pool larger.
    RGAPS_NO_SPACE = 7,
    /// The manager, rgapsd, is not running, could not be started or does not answer.
    RGAPS_NO_MANAGER = 8,
    /// The manager refused the request: no free slot in the topic, no such topic, no memory.
    RGAPS_REFUSED = 9,
    /// A device operation failed.
    RGAPS_DEVICE_ERROR = 10,
    /// The message's bytes were never written: its publisher died, or its device failed.
    RGAPS_POISONED = 11,
    /// This process was forked from the one that created the object.
    RGAPS_FORKED = 12,
    /// Shared memory has invalid values, written by another process. They were not used.
    RGAPS_CORRUPT = 13,
    /// A system call failed.
    RGAPS_SYSTEM_ERROR = 14,
    /// A defect of the library. The call was aborted.
    RGAPS_INTERNAL_ERROR = 15,
    /// A handle names a message that this subscriber neither has nor will get.
    RGAPS_STALE = 16,
    /// A handle names a message that was published before the subscriber joined.
    RGAPS_EARLY = 17,
    /// The publisher or subscriber has lost its slot: the manager died, and its successor did not take the slot back. Create it again.
    RGAPS_CUT_OFF = 18,
    /// The subscriber holds half of the messages that a publisher can have. Nothing is lost: release some messages and take again.
    RGAPS_TOO_MANY_HELD = 19,
}

use rgaps_status_t::*;

/// A failure to report to the caller.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: rgaps_status_t,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: rgaps_status_t, text: impl ToString) -> Self {
        Self { status, text: text.to_string() }
    }

    /// The argument `name` is NULL but must not be.
    pub(crate) fn null(name: &str) -> Self {
        Self::new(RGAPS_INVALID_ARGUMENT, format_args!("{name} is NULL"))
    }

    /// An argument is out of its range.
    pub(crate) fn argument(text: impl ToString) -> Self {
        Self::new(RGAPS_INVALID_ARGUMENT, text)
    }
}

impl From<BadHandle> for Failure {
    fn from(error: BadHandle) -> Self {
        let status = if matches!(error, BadHandle::Forked(_)) { RGAPS_FORKED } else { RGAPS_INVALID_HANDLE };
        Self::new(status, error)
    }
}

impl From<UnknownKind> for Failure {
    fn from(error: UnknownKind) -> Self {
        Self::argument(error)
    }
}

impl From<UnknownEncoding> for Failure {
    fn from(error: UnknownEncoding) -> Self {
        Self::argument(error)
    }
}

impl From<DescriptionError> for Failure {
    fn from(error: DescriptionError) -> Self {
        Self::argument(error)
    }
}

impl From<MetaError> for Failure {
    fn from(error: MetaError) -> Self {
        Self::new(status_of_meta(&error), error)
    }
}

impl From<ViewError> for Failure {
    fn from(error: ViewError) -> Self {
        Self::new(status_of_view(&error), error)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::new(RGAPS_DEVICE_ERROR, error)
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self::new(status_of_node(&error), error)
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        let status = match &error {
            PublishError::NoSpace { source: LoanError::TimedOut { .. }, .. } => RGAPS_TIMED_OUT,
            PublishError::NoSpace { source: LoanError::CutOff(_), .. } | PublishError::CutOff { .. } => RGAPS_CUT_OFF,
            PublishError::NoSpace { .. } => RGAPS_NO_SPACE,
            PublishError::Metadata { source, .. } => status_of_meta(source),
            PublishError::Length { .. } | PublishError::AnotherPublisher { .. } | PublishError::AnotherPool { .. } => {
                RGAPS_INVALID_ARGUMENT
            }
            PublishError::Topic { .. } | PublishError::Block { .. } => RGAPS_CORRUPT,
            PublishError::Device { .. } => RGAPS_DEVICE_ERROR,
            PublishError::View { source, .. } => status_of_view(source),
            PublishError::Memory { source, .. } => status_of_node(source),
            PublishError::Forked { .. } => RGAPS_FORKED,
        };
        Self::new(status, error)
    }
}

impl From<TakeError> for Failure {
    fn from(error: TakeError) -> Self {
        let status = match &error {
            TakeError::Pool { source, .. } => status_of_node(source),
            TakeError::OutOfBounds { .. } | TakeError::Metadata { .. } => RGAPS_CORRUPT,
            TakeError::CutOff { .. } => RGAPS_CUT_OFF,
            TakeError::TooManyHeld { .. } => RGAPS_TOO_MANY_HELD,
            TakeError::Device { .. } => RGAPS_DEVICE_ERROR,
            TakeError::Poisoned { .. } => RGAPS_POISONED,
            TakeError::View { source, .. } => status_of_view(source),
            TakeError::Wait { .. } => RGAPS_SYSTEM_ERROR,
            TakeError::Forked { .. } => RGAPS_FORKED,
        };
        Self::new(status, error)
    }
}

impl From<TakeByHandleError> for Failure {
    fn from(error: TakeByHandleError) -> Self {
        let status = match error {
            TakeByHandleError::Take(error) => return error.into(),
            TakeByHandleError::Layout { .. } => RGAPS_WRONG_VERSION,
            TakeByHandleError::Kind { .. } => RGAPS_WRONG_KIND,
            TakeByHandleError::EarlierRun { .. } | TakeByHandleError::Stale { .. } | TakeByHandleError::Gone { .. } => {
                RGAPS_STALE
            }
            TakeByHandleError::Early { .. } => RGAPS_EARLY,
            TakeByHandleError::NotHere { .. } => RGAPS_TIMED_OUT,
        };
        Self::new(status, error)
    }
}

fn status_of_meta(error: &MetaError) -> rgaps_status_t {
    if matches!(error, MetaError::Kind { .. }) { RGAPS_WRONG_KIND } else { RGAPS_INVALID_ARGUMENT }
}

fn status_of_view(error: &ViewError) -> rgaps_status_t {
    if let ViewError::Meta(error) = error { status_of_meta(error) } else { RGAPS_INVALID_ARGUMENT }
}

fn status_of_node(error: &NodeError) -> rgaps_status_t {
    match error {
        NodeError::Name(_) | NodeError::Domain { .. } | NodeError::Runtime(_) => RGAPS_INVALID_ARGUMENT,
        NodeError::Session(SessionError::Refused(Refusal::Type { .. })) => RGAPS_WRONG_KIND,
        NodeError::Session(SessionError::Refused(Refusal::Protocol { .. } | Refusal::Layout { .. })) => {
            RGAPS_WRONG_VERSION
        }
        NodeError::Session(SessionError::Refused(_)) => RGAPS_REFUSED,
        NodeError::Session(_) => RGAPS_NO_MANAGER,
        NodeError::Segment(_) | NodeError::Port(_) => RGAPS_CORRUPT,
        NodeError::Device(_) => RGAPS_DEVICE_ERROR,
        NodeError::Io(_) => RGAPS_SYSTEM_ERROR,
        NodeError::Forked => RGAPS_FORKED,
    }
}

thread_local! {
    static LAST: RefCell<(rgaps_status_t, CString)> = RefCell::new((RGAPS_OK, CString::default()));
}

/// Stores a failure for this thread, with its text escaped for display, since it may quote other processes.
pub(crate) fn remember(failure: Failure) -> rgaps_status_t {
    let status = failure.status;
    let text = CString::new(plain_lines(&failure.text).into_owned()).unwrap_or_default();
    // A thread that is ending has no thread-local memory any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (status, text));
    status
}

/// Runs the body of a call and stores its failure. A panic becomes a failure.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> rgaps_status_t {
    guard_or(|| body().map(|()| RGAPS_OK)).unwrap_or_else(|status| status)
}

/// Like `guard`, for calls that do not return a status.
pub(crate) fn guard_or<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, rgaps_status_t> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failure)) => Err(remember(failure)),
        Err(_) => Err(remember(Failure::new(
            RGAPS_INTERNAL_ERROR,
            "a defect of RGAPS: the details are on the standard error stream; please report it",
        ))),
    }
}

/// The text of this thread's last failed call: what failed, the numbers, and what to do. Never NULL; empty if no call has failed. Valid until the
/// thread's next failed call.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_status_t status = rgaps_publisher_create(node, "1raw", RGAPS_KIND_BYTES, NULL, &publisher);
/// assert(status == RGAPS_INVALID_ARGUMENT);
/// fprintf(stderr, "%s: %s\n", rgaps_status_name(status), rgaps_error_text());  // a name does not begin with a digit
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The status of this thread's last failed call, for calls that do not return a status. `RGAPS_OK` if no call has failed.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_error_status() -> rgaps_status_t {
    LAST.try_with(|last| last.borrow().0).unwrap_or(RGAPS_INTERNAL_ERROR)
}

/// The name of a status, such as "RGAPS_NO_SPACE"; "unknown" for other numbers.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_status_name(status: i32) -> *const c_char {
    let name = match status {
        0 => c"RGAPS_OK",
        1 => c"RGAPS_NO_MESSAGE",
        2 => c"RGAPS_TIMED_OUT",
        3 => c"RGAPS_INVALID_ARGUMENT",
        4 => c"RGAPS_INVALID_HANDLE",
        5 => c"RGAPS_WRONG_VERSION",
        6 => c"RGAPS_WRONG_KIND",
        7 => c"RGAPS_NO_SPACE",
        8 => c"RGAPS_NO_MANAGER",
        9 => c"RGAPS_REFUSED",
        10 => c"RGAPS_DEVICE_ERROR",
        11 => c"RGAPS_POISONED",
        12 => c"RGAPS_FORKED",
        13 => c"RGAPS_CORRUPT",
        14 => c"RGAPS_SYSTEM_ERROR",
        15 => c"RGAPS_INTERNAL_ERROR",
        16 => c"RGAPS_STALE",
        17 => c"RGAPS_EARLY",
        18 => c"RGAPS_CUT_OFF",
        19 => c"RGAPS_TOO_MANY_HELD",
        _ => c"unknown",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_panic_becomes_a_status_and_does_not_unwind_into_c() {
        assert_eq!(guard(|| panic!("on purpose")), RGAPS_INTERNAL_ERROR);
        assert_eq!(rgaps_error_status(), RGAPS_INTERNAL_ERROR);
    }

    #[test]
    fn each_thread_has_its_own_text() {
        guard(|| Err(Failure::argument("with a\0zero and an \x1b")));
        std::thread::spawn(|| assert_eq!(rgaps_error_status(), RGAPS_OK)).join().unwrap();
        // SAFETY: the library's own text, and no call of this thread fails meanwhile.
        assert_eq!(unsafe { CStr::from_ptr(rgaps_error_text()) }, c"with a\\0zero and an \\u{1b}");
    }

    #[test]
    fn a_cut_off_publisher_or_subscriber_gets_the_same_status_from_every_call() {
        let topic = || "/camera".to_owned();
        assert_eq!(Failure::from(TakeError::CutOff { topic: topic() }).status, RGAPS_CUT_OFF);
        assert_eq!(Failure::from(PublishError::CutOff { topic: topic() }).status, RGAPS_CUT_OFF);
    }

    #[test]
    fn every_status_has_its_name() {
        for status in [RGAPS_OK, RGAPS_NO_MESSAGE, RGAPS_TIMED_OUT, RGAPS_NO_SPACE, RGAPS_INTERNAL_ERROR, RGAPS_CUT_OFF]
        {
            // SAFETY: a text of the library's.
            let name = unsafe { CStr::from_ptr(rgaps_status_name(status as i32)) };
            assert_eq!(name.to_str(), Ok(format!("{status:?}").as_str()));
        }
    }
}
