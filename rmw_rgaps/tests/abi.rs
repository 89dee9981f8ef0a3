//! The layer's C ABI, over inner RMWs made for it: calls of every function, with their arguments, results and pointees in both directions; the
//! exported names; and refused inner RMWs.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod common;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::Library;
use rgaps_testing::{Watchdog, again_with};

const ROUNDS: usize = 200;

type Call = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int) -> *const c_char;

#[repr(C)]
#[derive(Clone, Copy)]
struct Named {
    name: *const c_char,
    call: Option<Call>,
}

/// The folder of libraries that `again_with` filled.
fn folder() -> std::path::PathBuf {
    std::env::var_os("LD_LIBRARY_PATH").unwrap().into()
}

fn all_into(folder: &Path) -> std::io::Result<()> {
    common::rcutils_into(folder);
    common::recording_into(folder, &[]);
    common::caller_into(folder);
    Ok(())
}

/// Calls every function of the table; with `twice` the inner RMW also calls the layer from within.
fn call_all(twice: bool) {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let _rcutils = Library::load(&folder().join("librcutils.so"), true);
    let layer = Library::load(&common::layer(), false);
    let inner = Library::load(&folder().join("librmw_recording.so"), false);
    let caller = Library::load(&folder().join("libcaller.so"), false);
    // SAFETY: recording_head.c has it with this type.
    let record: extern "C" fn() -> *mut c_void = unsafe { std::mem::transmute(inner.find("double_record")) };
    let calls: *const Named = caller.find("double_calls").cast();
    let mut count = 0;
    loop {
        // The array ends with nulls, which end the loop.
        let named = common::at(calls, count);
        let Some(call) = named.call else { break };
        count += 1;
        // SAFETY: a C string of the caller's.
        let name = unsafe { CStr::from_ptr(named.name) }.to_str().unwrap();
        if name == "rmw_get_implementation_identifier" {
            continue;
        }
        for round in 0..ROUNDS {
            // SAFETY: the function is the layer's of this name, the record is the inner RMW's.
            let complaint = unsafe { call(layer.find(name), record(), c_int::from(twice)) };
            // SAFETY: a C string of the caller's.
            let text = if complaint.is_null() { None } else { Some(unsafe { CStr::from_ptr(complaint) }) };
            assert!(text.is_none(), "round {round}: {text:?}");
        }
    }
    assert_eq!(count, common::functions().len());
}

#[test]
fn every_function_reaches_the_inner_rmw_and_comes_back_unchanged() {
    if again_with(&[("RGAPS_INNER_RMW", common::RECORDING)], all_into) {
        call_all(false);
    }
}

#[test]
fn every_function_may_be_called_by_the_inner_rmw_from_within_the_same_function() {
    if again_with(&[("RGAPS_INNER_RMW", common::RECORDING)], all_into) {
        call_all(true);
    }
}

#[test]
fn the_library_exports_the_functions_of_the_table_and_nothing_else() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(common::layer()).output();
    let output = output.expect("binutils, which linking needs, have nm");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut exported: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    exported.sort_unstable();
    let functions = common::functions();
    let mut wanted: Vec<&str> = functions.iter().map(|function| function.name.as_str()).collect();
    wanted.sort_unstable();
    assert_eq!(exported, wanted);
}

/// The error of rmw_get_serialization_format, which needs the inner RMW, if there is no usable one.
fn refused(inner: &str, fill: impl FnOnce(&Path)) -> Option<String> {
    let fill = |folder: &Path| {
        common::rcutils_into(folder);
        fill(folder);
        Ok(())
    };
    if !again_with(&[("RGAPS_INNER_RMW", inner)], fill) {
        return None;
    }
    let rcutils = Library::load(&folder().join("librcutils.so"), true);
    let layer = Library::load(&common::layer(), false);
    type Ask = extern "C" fn() -> *const c_char;
    // SAFETY: rmw declares it with this type.
    let identifier: Ask = unsafe { std::mem::transmute(layer.find("rmw_get_implementation_identifier")) };
    // SAFETY: a C string that is always there.
    assert_eq!(unsafe { CStr::from_ptr(identifier()) }, c"rmw_rgaps", "rcl compares it before anything else");
    assert_eq!(common::error(&rcutils), "");
    // SAFETY: rmw declares it with this type.
    let format: Ask = unsafe { std::mem::transmute(layer.find("rmw_get_serialization_format")) };
    for _ in 0..2 {
        assert!(format().is_null());
    }
    Some(common::error(&rcutils))
}

#[test]
fn an_inner_rmw_that_is_not_installed_is_an_error_with_the_next_step() {
    let Some(text) = refused("rmw_not_installed", |_| {}) else { return };
    assert!(
        text.contains("librmw_not_installed.so") && text.contains("or choose another one by RGAPS_INNER_RMW"),
        "{text}"
    );
}

#[test]
fn the_layer_is_no_inner_rmw_of_itself() {
    let Some(text) = refused("rmw_rgaps", |_| {}) else { return };
    assert!(text.contains("rmw_rgaps cannot be the RMW below rmw_rgaps"), "{text}");
}

#[test]
fn the_layer_under_another_name_is_no_inner_rmw_of_itself() {
    let other = |folder: &Path| std::os::unix::fs::symlink(common::layer(), folder.join("librmw_other.so")).unwrap();
    let Some(text) = refused("rmw_other", other) else { return };
    assert!(text.contains("rmw_rgaps itself, which cannot be below itself"), "{text}");
}

#[test]
fn an_inner_rmw_of_another_distro_is_refused_with_what_it_lacks() {
    let without = |folder: &Path| common::recording_into(folder, &["rmw_publish", "rmw_wait", "rmw_take_sequence"]);
    let Some(text) = refused(common::RECORDING, without) else { return };
    assert!(text.contains("lacks 2 function(s) of an RMW: rmw_publish, rmw_wait"), "{text}");
}

#[test]
fn a_name_with_a_slash_is_refused() {
    let Some(text) = refused("lib/rmw_x", |_| {}) else { return };
    assert!(text.contains("no name of an RMW; give the name"), "{text}");
}

#[test]
fn an_optional_function_that_the_inner_rmw_lacks_is_unsupported() {
    let fill = |folder: &Path| {
        common::rcutils_into(folder);
        common::recording_into(folder, &["rmw_take_sequence"]);
        Ok(())
    };
    if !again_with(&[("RGAPS_INNER_RMW", common::RECORDING)], fill) {
        return;
    }
    let rcutils = Library::load(&folder().join("librcutils.so"), true);
    let layer = Library::load(&common::layer(), false);
    type Take = extern "C" fn(*const c_void, usize, *mut c_void, *mut c_void, *mut c_void, *mut c_void) -> c_int;
    // SAFETY: rmw declares it with this type, and null pointers are what any RMW must refuse.
    let take: Take = unsafe { std::mem::transmute(layer.find("rmw_take_sequence")) };
    let null = std::ptr::null_mut;
    const UNSUPPORTED: c_int = 3;
    assert_eq!(take(null(), 0, null(), null(), null(), null()), UNSUPPORTED);
    assert!(common::error(&rcutils).contains("the inner RMW has no rmw_take_sequence"), "{}", common::error(&rcutils));
}
