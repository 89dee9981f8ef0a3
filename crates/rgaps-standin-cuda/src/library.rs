//! For tests of other crates: the path of the shared library, and its controls once it is loaded.
//!
//! These tests link the Rust library only for this file. Its functions and tables are not those of the shared library that the backend
//! under test has loaded, so `Control` looks its functions up in the shared library.

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::abi::{Code, Out, SUCCESS};
use crate::control::UNKNOWN_NAME;
use crate::state::LIVE;

/// The name of every device.
pub const DEVICE_NAME: &str = "RGAPS stand-in (no GPU)";

const FILE: &str = "librgaps_standin_cuda.so";
/// The names by which programs load libcuda.
const NAMES: [&CStr; 2] = [c"libcuda.so", c"libcuda.so.1"];

type ByName = unsafe extern "C" fn(*const c_char) -> u64;

/// The controls of the stand-in that this process has loaded as libcuda.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    fail: unsafe extern "C" fn(*const c_char, u64, Code) -> bool,
    fail_later: extern "C" fn(u64, Code),
    delay_us: extern "C" fn(u64),
    hold: extern "C" fn(),
    go: extern "C" fn(),
    calls: ByName,
    reset_calls: extern "C" fn(),
    live: ByName,
    at_flush: extern "C" fn(Option<extern "C" fn()>),
    begin_capture: unsafe extern "C" fn(u64, u32) -> Code,
    end_capture: unsafe extern "C" fn(u64, Out<u64>) -> Code,
}

/// The path of the shared library, which cargo builds beside the test program; panics if it is missing.
pub fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let folder = own.parent().unwrap_or(Path::new(""));
    // The program is in `deps`, above it, or in a folder beside it, like examples.
    let places = [folder.to_owned(), folder.join("deps"), folder.join("../deps")];
    match places.iter().map(|place| place.join(FILE)).find(|file| file.is_file()) {
        Some(file) => file,
        None => panic!("{FILE} is not in {}: make rgaps-standin-cuda a dev-dependency of the test", folder.display()),
    }
}

/// Links it by both names into a folder, for the LD_LIBRARY_PATH of another process.
pub fn link_into(folder: &Path) -> std::io::Result<()> {
    let link = |name: &CStr| std::os::unix::fs::symlink(library(), folder.join(OsStr::from_bytes(name.to_bytes())));
    NAMES.into_iter().try_for_each(link)
}

impl Control {
    /// Loads the stand-in into this process, before any libcuda. A later load of libcuda.so, which cudarc tries first, then gets it, even if
    /// a driver is installed. Panics if another libcuda is already loaded.
    pub fn load() -> Self {
        let file = library();
        let path = CString::new(file.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: a C string, and a library whose only constructors are the Rust runtime's. It stays loaded.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{} cannot be loaded", file.display());
        match Self::find() {
            Some(control) => control,
            None => panic!("{} is loaded, but another libcuda was loaded before it", file.display()),
        }
    }

    /// The controls, if the loaded libcuda is the stand-in.
    pub fn find() -> Option<Self> {
        // SAFETY: a C string; nothing is loaded.
        let loaded = NAMES.map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) });
        let library = *loaded.iter().find(|library| !library.is_null())?;
        Some(Self {
            fail: symbol(library, c"rgaps_standin_fail")?,
            fail_later: symbol(library, c"rgaps_standin_fail_later")?,
            delay_us: symbol(library, c"rgaps_standin_delay_us")?,
            hold: symbol(library, c"rgaps_standin_hold")?,
            go: symbol(library, c"rgaps_standin_go")?,
            calls: symbol(library, c"rgaps_standin_calls")?,
            reset_calls: symbol(library, c"rgaps_standin_reset_calls")?,
            live: symbol(library, c"rgaps_standin_live")?,
            at_flush: symbol(library, c"rgaps_standin_at_flush")?,
            begin_capture: symbol(library, c"cuStreamBeginCapture_v2")?,
            end_capture: symbol(library, c"cuStreamEndCapture")?,
        })
    }

    /// Makes the `nth` call of a function from now return `code` and do nothing, 1 being the next; 0 for every call. Code 0 cancels the
    /// faults of this function. Panics if there is no such function.
    pub fn fail(&self, call: &str, nth: u64, code: Code) {
        let name = c_string(call);
        // SAFETY: the function of this name, and a C string.
        assert!(unsafe { (self.fail)(name.as_ptr(), nth, code) }, "the stand-in has no {call}");
    }

    /// Makes the `nth` operation of any stream from now fail, and with it its context. Code 0 cancels that.
    pub fn fail_later(&self, nth: u64, code: Code) {
        (self.fail_later)(nth, code);
    }

    /// Sets the delay before each operation.
    pub fn delay_us(&self, us: u64) {
        (self.delay_us)(us);
    }

    /// Stops all streams before their next operation; returns when copies and writes under way are over.
    pub fn hold(&self) {
        (self.hold)();
    }

    /// Resumes all streams.
    pub fn go(&self) {
        (self.go)();
    }

    /// Calls of a function since the last reset. Panics if there is no such function.
    pub fn calls(&self, call: &str) -> u64 {
        Self::ask(self.calls, call)
    }

    /// Resets the counts of calls.
    pub fn reset_calls(&self) {
        (self.reset_calls)();
    }

    /// Sets what each flush of network cards' writes calls, before it returns.
    pub fn at_flush(&self, hook: Option<extern "C" fn()>) {
        (self.at_flush)(hook);
    }

    /// Begins to capture a stream, given by its driver handle, into a graph. Calls that the capture forbids fail until it ends.
    pub fn begin_capture(&self, stream: u64) {
        // SAFETY: numbers only.
        assert_eq!(unsafe { (self.begin_capture)(stream, 0) }, SUCCESS, "the stream cannot be captured");
    }

    /// Ends the capture; false if a call has invalidated it.
    pub fn end_capture(&self, stream: u64) -> bool {
        let mut graph = 0;
        // SAFETY: stores one handle.
        unsafe { (self.end_capture)(stream, Out::from(&mut graph)) == SUCCESS }
    }

    /// The number of live objects of a kind, see `rgaps_standin_live`. Panics if there is no such kind.
    pub fn live(&self, what: &str) -> u64 {
        Self::ask(self.live, what)
    }

    /// All live objects, which the program has not freed. Empty at the end of a correct test.
    pub fn leaks(&self) -> Vec<(&'static str, u64)> {
        LIVE.iter().map(|what| (*what, self.live(what))).filter(|(_, count)| *count > 0).collect()
    }

    fn ask(question: ByName, name: &str) -> u64 {
        let text = c_string(name);
        // SAFETY: one of the two functions of this type, and a C string.
        let answer = unsafe { question(text.as_ptr()) };
        assert!(answer != UNKNOWN_NAME, "the stand-in does not know {name}");
        answer
    }
}

/// A C string; the empty name, which is unknown, if the text contains a zero.
fn c_string(name: &str) -> CString {
    CString::new(name).unwrap_or_default()
}

/// Finds a function of the library; the caller states its type in `control.rs`.
fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: an open library and a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() {
        return None;
    }
    // SAFETY: the non-null address of a function, as a function pointer of its type; both have the same size.
    Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}
