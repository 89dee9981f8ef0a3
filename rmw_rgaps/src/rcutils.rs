//! The error state and the log of rcutils. Its library is found at run time: every program that uses an RMW has loaded it. Without it, texts
//! are written to standard error.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Severities of rcutils.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub(crate) enum Severity {
    Debug = 10,
    Info = 20,
    Warn = 30,
    Error = 40,
}

/// A location, as in rcutils/logging.h.
#[repr(C)]
struct Location {
    function_name: *const c_char,
    file_name: *const c_char,
    line_number: usize,
}

type SetErrorState = unsafe extern "C" fn(*const c_char, *const c_char, usize);
type ResetError = unsafe extern "C" fn();
type IsEnabled = unsafe extern "C" fn(*const c_char, c_int) -> bool;
type Log = unsafe extern "C" fn(*const Location, c_int, *const c_char, *const c_char, ...);

struct Rcutils {
    set_error_state: SetErrorState,
    reset_error: ResetError,
    is_enabled: IsEnabled,
    log: Log,
}

const LOGGER: &CStr = c"rmw_rgaps";

/// Longer texts are cut, as in rcutils.
const TEXT_BYTES_MAX: usize = 1024;

fn rcutils() -> Option<&'static Rcutils> {
    static FOUND: OnceLock<Option<Rcutils>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref()
}

fn find() -> Option<Rcutils> {
    let mut library = libc::RTLD_DEFAULT;
    if symbol(library, c"rcutils_set_error_state").is_null() {
        // Not among the global symbols if a plug-in, such as Python's rclpy, loaded it.
        // SAFETY: a C string; the library's constructors are those of a C library. It stays loaded, so what is found in it stays good.
        library = unsafe { libc::dlopen(c"librcutils.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE) };
        if library.is_null() {
            return None;
        }
    }
    let [set, reset, enabled, log] =
        [c"rcutils_set_error_state", c"rcutils_reset_error", c"rcutils_logging_logger_is_enabled_for", c"rcutils_log"]
            .map(|name| symbol(library, name));
    if [set, reset, enabled, log].iter().any(|symbol| symbol.is_null()) {
        return None;
    }
    Some(Rcutils {
        // SAFETY: rcutils of every distro declares it with this type.
        set_error_state: unsafe { std::mem::transmute::<*mut c_void, SetErrorState>(set) },
        // SAFETY: as above.
        reset_error: unsafe { std::mem::transmute::<*mut c_void, ResetError>(reset) },
        // SAFETY: as above.
        is_enabled: unsafe { std::mem::transmute::<*mut c_void, IsEnabled>(enabled) },
        // SAFETY: as above.
        log: unsafe { std::mem::transmute::<*mut c_void, Log>(log) },
    })
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: RTLD_DEFAULT or a library that stays loaded, and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// A zero-terminated text, cut to rcutils' limit. Zero bytes in it become blanks.
struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
}

impl Text {
    fn new() -> Self {
        Self { bytes: [0; TEXT_BYTES_MAX], length: 0 }
    }

    fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes().take(TEXT_BYTES_MAX - 1 - self.length) {
            self.bytes[self.length] = if byte == 0 { b' ' } else { byte };
            self.length += 1;
        }
        Ok(())
    }
}

fn text_of(said: std::fmt::Arguments<'_>) -> Text {
    let mut text = Text::new();
    // Writing to `Text` cannot fail; a value whose Display fails is left out.
    let _ = std::fmt::Write::write_fmt(&mut text, said);
    text
}

/// Sets the calling thread's error, like rmw_set_error_string; rcl passes it on to its caller.
pub(crate) fn set_error(said: std::fmt::Arguments<'_>) {
    let text = text_of(format_args!("rmw_rgaps: {said}"));
    let Some(rcutils) = rcutils() else {
        return eprintln!("rmw_rgaps: {said}");
    };
    // rcutils reports an error that is still set as overwritten.
    // SAFETY: no arguments.
    unsafe { (rcutils.reset_error)() };
    // SAFETY: two C strings, which are copied.
    unsafe { (rcutils.set_error_state)(text.as_ptr(), c"rmw_rgaps".as_ptr(), 0) };
}

/// Clears the calling thread's error.
pub(crate) fn reset_error() {
    if let Some(rcutils) = rcutils() {
        // SAFETY: no arguments.
        unsafe { (rcutils.reset_error)() };
    }
}

/// Whether messages of this severity are logged.
pub(crate) fn is_enabled(severity: Severity) -> bool {
    match rcutils() {
        // SAFETY: a C string.
        Some(rcutils) => unsafe { (rcutils.is_enabled)(LOGGER.as_ptr(), severity as c_int) },
        None => severity >= Severity::Warn,
    }
}

/// Logs a line under the name rmw_rgaps. Call it with no lock held: a log handler may publish the line through this library.
pub(crate) fn log(severity: Severity, said: std::fmt::Arguments<'_>) {
    if !is_enabled(severity) {
        return;
    }
    let Some(rcutils) = rcutils() else {
        return eprintln!("rmw_rgaps: {said}");
    };
    let text = text_of(said);
    let here = Location { function_name: c"".as_ptr(), file_name: c"rmw_rgaps".as_ptr(), line_number: 0 };
    // SAFETY: a location that outlives the call, C strings, and a format that takes one of them.
    unsafe { (rcutils.log)(&raw const here, severity as c_int, LOGGER.as_ptr(), c"%s".as_ptr(), text.as_ptr()) };
}
