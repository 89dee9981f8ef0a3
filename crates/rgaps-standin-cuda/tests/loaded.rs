//! Tests the shared library the way other crates use it: loaded by its path, or found by the loader in place of the driver.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::ffi::{CStr, c_int, c_void};
use std::process::Command;

use rgaps_standin_cuda::{Control, link_into};
use rgaps_testing::RuntimeDir;

const CHILD: &str = "RGAPS_TEST_STANDIN_IS_LINKED";

#[test]
fn a_program_that_loads_it_by_path_gets_it_as_the_driver() {
    assert!(Control::find().is_none());
    let control = Control::load();
    // The name that cudarc tries first.
    let init = init_of(c"libcuda.so");
    control.fail("cuInit", 2, 999);
    assert_eq!((init(0), init(0), init(0)), (0, 999, 0));
    assert_eq!(control.calls("cuInit"), 3);
    control.reset_calls();
    assert_eq!(control.calls("cuInit"), 0);
    assert_eq!(control.leaks(), []);
}

#[test]
fn a_child_finds_it_in_its_library_path_and_obeys_its_environment() {
    if std::env::var_os(CHILD).is_some() {
        let (init, same) = (init_of(c"libcuda.so.1"), init_of(c"libcuda.so"));
        assert_eq!((init(0), same(0)), (100, 2));
        assert_eq!(Control::find().unwrap().calls("cuInit"), 2);
        return;
    }
    let folder = RuntimeDir::new("standin").unwrap();
    link_into(folder.path()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_child_finds_it_in_its_library_path_and_obeys_its_environment"]).env(CHILD, "1");
    child.env("LD_LIBRARY_PATH", folder.path());
    let ended =
        child.env("RGAPS_TEST_STANDIN_DEVICES", "0").env("RGAPS_TEST_STANDIN_FAIL", "cuInit#2=2").output().unwrap();
    let output = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && output.contains("1 passed"), "{output}");
}

/// `cuInit` of a library that stays loaded.
fn init_of(name: &CStr) -> extern "C" fn(u32) -> c_int {
    // SAFETY: a C string; the library is the stand-in or, where the test fails, a driver.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{name:?} is not found");
    // SAFETY: an open library and a C string.
    let address = unsafe { libc::dlsym(library, c"cuInit".as_ptr()) };
    assert!(!address.is_null());
    // SAFETY: the address of a function of this type.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> c_int>(address) }
}
