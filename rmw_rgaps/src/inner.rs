//! The inner RMW: its name, its library, and its functions, called by name through `calls`.
//!
//! It is loaded at the first call that needs it, and never unloaded. No lock is held while it is called.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use crate::sys::*;

/// Names the inner RMW.
pub(crate) const VARIABLE: &str = "RGAPS_INNER_RMW";

/// The default on every supported distro.
const DEFAULT: &str = "rmw_fastrtps_cpp";

/// Libraries that cannot be the inner RMW: this layer, and the one that loads it.
const NO_INNER: [&str; 2] = ["rmw_rgaps", "rmw_implementation"];

macro_rules! table {
    ($($required:literal fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The inner RMW's functions. Optional ones that it lacks are None.
        #[derive(Default)]
        struct Functions {
            $($name: Option<unsafe extern "C" fn($($type),*) -> $result>,)*
        }

        impl Functions {
            /// Looks up all functions; also returns the names of required ones that are missing.
            fn find(lookup: impl Fn(&CStr) -> *mut c_void) -> (Self, Vec<&'static str>) {
                let (mut found, mut missing) = (Self::default(), Vec::new());
                $(
                    let address = lookup(c_name(concat!(stringify!($name), "\0")));
                    if !address.is_null() {
                        // SAFETY: the name is rmw's, and functions.def has its type in the headers that this library was built with.
                        found.$name = Some(unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(address) });
                    } else if $required {
                        missing.push(stringify!($name));
                    }
                )*
                (found, missing)
            }
        }

        /// Calls of the inner RMW.
        pub(crate) mod calls {
            use crate::ffi::Failure;
            use crate::rcutils;
            use crate::sys::*;

            $(
                /// The inner RMW's function of this name.
                // SAFETY: what rmw asks of its callers.
                pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
                    let functions = match super::functions() {
                        Ok(functions) => functions,
                        Err(why) => {
                            rcutils::set_error(format_args!("{why}"));
                            return <$result as Failure>::failed();
                        }
                    };
                    let Some(function) = functions.$name else {
                        rcutils::set_error(format_args!("the inner RMW has no {}", stringify!($name)));
                        return <$result as Failure>::unsupported();
                    };
                    // SAFETY: the caller keeps to what rmw asks.
                    unsafe { function($($arg),*) }
                }
            )*
        }
    };
}
for_each_function!(table);

fn c_name(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default()
}

fn functions() -> Result<&'static Functions, &'static str> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| load(&std::env::var_os(VARIABLE).unwrap_or_default()));
    loaded.as_ref().map_err(String::as_str)
}

/// The library's file for the variable's value.
fn library_of(asked: &OsStr) -> Result<CString, String> {
    let text = asked.to_string_lossy();
    let name = if text.is_empty() { DEFAULT } else { text.as_ref() };
    let file = match name.rsplit_once('/') {
        None => format!("lib{name}.so"),
        Some((_, file)) if name.starts_with('/') && file.ends_with(".so") => file.to_owned(),
        Some(_) => {
            let next = "give the name of an RMW, such as rmw_cyclonedds_cpp, or the absolute path of its library";
            return Err(format!("{VARIABLE} is {name:?}, which is no name of an RMW; {next}"));
        }
    };
    if let Some(refused) = NO_INNER.iter().find(|refused| file == format!("lib{refused}.so")) {
        let next = "give the RMW below it, such as rmw_fastrtps_cpp, or unset the variable";
        return Err(format!("{VARIABLE} is {name:?}, but {refused} cannot be the RMW below rmw_rgaps; {next}"));
    }
    let path = if name.starts_with('/') { asked.as_bytes().to_vec() } else { file.into_bytes() };
    CString::new(path).map_err(|_| format!("{VARIABLE} is {name:?}, which contains a zero byte"))
}

fn load(asked: &OsStr) -> Result<Functions, String> {
    let library = library_of(asked)?;
    let name = library.to_string_lossy();
    // SAFETY: a C string. The user who chose the library vouches for its constructors.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
    if handle.is_null() {
        let next = format!("install that RMW and source its setup file, or choose another one by {VARIABLE}");
        return Err(format!("the inner RMW's library {name} cannot be loaded: {}; {next}", loader_error()));
    }
    // SAFETY: a library that stays loaded, and a C string.
    let lookup = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
    if is_own(lookup(c"rmw_get_implementation_identifier")) {
        return Err(format!("{name} is rmw_rgaps itself, which cannot be below itself; set {VARIABLE} to another RMW"));
    }
    let (functions, missing) = Functions::find(lookup);
    if missing.is_empty() {
        return Ok(functions);
    }
    let next = "set RGAPS_INNER_RMW to an RMW of the same distro as rmw_rgaps";
    Err(format!("{name} lacks {} function(s) of an RMW: {}; {next}", missing.len(), missing.join(", ")))
}

/// Whether a function is in this library.
fn is_own(function: *mut c_void) -> bool {
    let base = |address: *const c_void| {
        // SAFETY: pointers and numbers, for which zeros are values.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: dladdr looks the address up and does not read there.
        let is_known = unsafe { libc::dladdr(address, &raw mut found) } != 0;
        is_known.then_some(found.dli_fbase)
    };
    let own: fn(*mut c_void) -> bool = is_own;
    base(function).is_some() && base(function) == base(own as *const c_void)
}

fn loader_error() -> String {
    // SAFETY: no arguments; the text is the thread's own until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: a C string of the loader's.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(asked: &str) -> Result<String, String> {
        library_of(OsStr::new(asked)).map(|library| library.into_string().unwrap())
    }

    #[test]
    fn the_inner_rmw_is_a_name_or_an_absolute_path_and_not_this_layer() {
        assert_eq!(library("").unwrap(), "librmw_fastrtps_cpp.so");
        assert_eq!(library("rmw_cyclonedds_cpp").unwrap(), "librmw_cyclonedds_cpp.so");
        assert_eq!(library("/opt/x/librmw_x.so").unwrap(), "/opt/x/librmw_x.so");
        for refused in ["rmw_rgaps", "rmw_implementation", "/opt/x/librmw_rgaps.so"] {
            let text = library(refused).unwrap_err();
            assert!(text.contains(refused) && text.contains("cannot be the RMW below rmw_rgaps"), "{text}");
        }
        for refused in ["a/b", "./librmw_x.so", "/opt/x", "/", "rmw_x/"] {
            let text = library(refused).unwrap_err();
            assert!(text.contains("no name of an RMW; give the name"), "{text}");
        }
        assert!(library("rmw\0x").unwrap_err().contains("contains a zero byte"));
    }

    #[test]
    fn a_missing_library_is_an_error_with_its_name_and_what_to_do() {
        let Err(text) = load(OsStr::new("rmw_that_is_not_there")) else { panic!("loaded") };
        assert!(
            text.contains("librmw_that_is_not_there.so") && text.contains("or choose another one by RGAPS_INNER_RMW"),
            "{text}"
        );
    }

    #[test]
    fn every_required_function_of_an_rmw_is_looked_up() {
        let (_, missing) = Functions::find(|_| std::ptr::null_mut());
        assert!(missing.len() > 50 && missing.contains(&"rmw_publish"), "{missing:?}");
    }
}
