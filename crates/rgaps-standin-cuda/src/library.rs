//! For tests of other crates: the shared library's file, and its controls once it is loaded.
//!
//! The tests link this Rust library for what is in this file only. Its copies of the driver's functions and tables are not those of the
//! shared library that the backend under test has loaded, so that `Control` looks for its functions there.

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::abi::{Code, Out, SUCCESS};
use crate::control::UNKNOWN_NAME;
use crate::state::LIVE;

/// What each device says its name is.
pub const DEVICE_NAME: &str = "RGAPS stand-in (no GPU)";

const FILE: &str = "librgaps_standin_cuda.so";
/// What programs ask the loader for.
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
    begin_capture: unsafe extern "C" fn(u64, u32) -> Code,
    end_capture: unsafe extern "C" fn(u64, Out<u64>) -> Code,
}

/// The file of the shared library, which cargo has built beside the test program; panics if it is not there.
pub fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let folder = own.parent().unwrap_or(Path::new(""));
    // The program is in `deps` itself, or above it, or in a folder beside it, as examples are.
    let places = [folder.to_owned(), folder.join("deps"), folder.join("../deps")];
    match places.iter().map(|place| place.join(FILE)).find(|file| file.is_file()) {
        Some(file) => file,
        None => panic!("{FILE} is not in {}: make rgaps-standin-cuda a dev-dependency of the test", folder.display()),
    }
}

/// Makes links to it in a folder that is to be the LD_LIBRARY_PATH of another process, by the two names that programs ask for.
pub fn link_into(folder: &Path) -> std::io::Result<()> {
    let link = |name: &CStr| std::os::unix::fs::symlink(library(), folder.join(OsStr::from_bytes(name.to_bytes())));
    NAMES.into_iter().try_for_each(link)
}

impl Control {
    /// Loads the stand-in into this process, before anybody has loaded a libcuda: who asks for libcuda.so, as cudarc does first, then gets it,
    /// also where a driver is installed. Panics if a libcuda is loaded that is not the stand-in.
    pub fn load() -> Self {
        let file = library();
        let path = CString::new(file.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: a C string, and a library whose constructors are those of Rust's runtime. It stays loaded.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{} cannot be loaded", file.display());
        match Self::find() {
            Some(control) => control,
            None => panic!("{} is loaded, but another libcuda was before it", file.display()),
        }
    }

    /// The controls, if the libcuda that this process has loaded is the stand-in.
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
            begin_capture: symbol(library, c"cuStreamBeginCapture_v2")?,
            end_capture: symbol(library, c"cuStreamEndCapture")?,
        })
    }

    /// Makes the `nth` call of a function from now return `code` and do nothing, 1 being the next; 0 for each call from now. Code 0 takes
    /// back what was asked for this function. Panics if there is no such function.
    pub fn fail(&self, call: &str, nth: u64, code: Code) {
        let name = c_string(call);
        // SAFETY: the function of this name, and a C string.
        assert!(unsafe { (self.fail)(name.as_ptr(), nth, code) }, "the stand-in has no {call}");
    }

    /// Makes the `nth` operation of any stream from now fail, and its context with it. Code 0 takes that back.
    pub fn fail_later(&self, nth: u64, code: Code) {
        (self.fail_later)(nth, code);
    }

    /// Sets the delay before each operation.
    pub fn delay_us(&self, us: u64) {
        (self.delay_us)(us);
    }

    /// Stops all streams before their next operation; returns when copies and writes that had begun are over.
    pub fn hold(&self) {
        (self.hold)();
    }

    /// Lets all streams go on.
    pub fn go(&self) {
        (self.go)();
    }

    /// Calls of a function since the last reset. Panics if there is no such function.
    pub fn calls(&self, call: &str) -> u64 {
        Self::ask(self.calls, call)
    }

    /// Counts calls from zero again.
    pub fn reset_calls(&self) {
        (self.reset_calls)();
    }

    /// Begins to capture a stream, named by the driver's handle, into a graph. What the capture forbids is refused until it ends.
    pub fn begin_capture(&self, stream: u64) {
        // SAFETY: numbers only.
        assert_eq!(unsafe { (self.begin_capture)(stream, 0) }, SUCCESS, "the stream cannot be captured");
    }

    /// Ends that; false if something has spoilt the graph.
    pub fn end_capture(&self, stream: u64) -> bool {
        let mut graph = 0;
        // SAFETY: stores one handle.
        unsafe { (self.end_capture)(stream, Out::from(&mut graph)) == SUCCESS }
    }

    /// How much of a kind there is, see `rgaps_standin_live`. Panics if there is no such kind.
    pub fn live(&self, what: &str) -> u64 {
        Self::ask(self.live, what)
    }

    /// All that there is: what a program has not given back. Empty is what a test wants to see at its end.
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

/// A name without a zero in it; the stand-in does not know the empty one.
fn c_string(name: &str) -> CString {
    CString::new(name).unwrap_or_default()
}

/// A function of the library; the caller names the type that `control.rs` has for it.
fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: an open library and a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() {
        return None;
    }
    // SAFETY: the address of a function, as a function pointer of its type: both are as wide, and the address is not null.
    Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}
