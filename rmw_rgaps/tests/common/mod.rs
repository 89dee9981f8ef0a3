//! Shared by the tests of the layer: the doubles, C code generated from abi/functions.def and compiled here, and the layer's library.

#![allow(dead_code)] // Each test program uses only a part.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../build/table.rs"]
pub mod table;

/// The name by which the recording double is loaded.
pub const RECORDING: &str = "rmw_recording";
/// The name by which the forwarding double is loaded.
pub const FORWARDING: &str = "rmw_forwarding";

/// The functions that this build of the layer exports, from its table; never empty.
pub fn functions() -> Vec<table::Function> {
    let level = env!("RMW_LEVEL").parse().unwrap();
    let functions = table::functions(include_str!("../../abi/functions.def"), level);
    assert_eq!(functions.len(), [88, 95, 95, 97][level as usize], "of {}", env!("RMW_HEADERS"));
    functions
}

/// The layer's library, which cargo built for the tests beside them.
pub fn layer() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.with_file_name("librmw_rgaps.so");
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

/// Compiles C sources to a library.
pub fn compile(library: &Path, sources: &[&Path]) {
    compile_with(library, sources, &[]);
}

fn compile_with(library: &Path, sources: &[&Path], flags: &[&str]) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args([
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-function",
        "-fPIC",
        "-shared",
        "-pthread",
    ]);
    command.args(env!("RMW_FLAGS").split(';')).arg("-I").arg(here.join("tests/doubles"));
    let output = command.args(flags).arg("-o").arg(library).args(sources).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A source of the doubles.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doubles").join(name)
}

/// The stand-in for rcutils, into a folder.
pub fn rcutils_into(folder: &Path) {
    compile(&folder.join("librcutils.so"), &[&source("rcutils.c")]);
}

/// Compiles the recording inner RMW into a folder, without the named functions.
pub fn recording_into(folder: &Path, without: &[&str]) {
    let mut c = format!("#include \"{}\"\n", source("recording_head.c").display());
    for function in functions().iter().filter(|function| !without.contains(&function.name.as_str())) {
        record_function(&mut c, function);
    }
    let file = folder.join("recording.c");
    std::fs::write(&file, c).unwrap();
    compile(&folder.join(format!("lib{RECORDING}.so")), &[&file]);
}

fn record_function(c: &mut String, function: &table::Function) {
    let table::Function { name, result, parameters, .. } = function;
    writeln!(c, "{result} {name}({})\n{{\n  begin(\"{name}\");", declared(parameters)).unwrap();
    for index in 0..parameters.len() {
        writeln!(c, "  note(&a{index}, sizeof a{index});").unwrap();
    }
    for (index, _) in parameters.iter().enumerate().filter(|(_, c_type)| is_written(c_type)) {
        writeln!(c, "  write_noise(a{index});").unwrap();
    }
    let names: Vec<String> = (0..parameters.len()).map(|index| format!("a{index}")).collect();
    writeln!(c, "  {result} result;\n  memcpy(&result, record.result, sizeof result);").unwrap();
    // What it writes stays as it was the first time.
    writeln!(c, "  if (record.again) {{\n    __typeof__(&{name}) again = record.again;\n    record.again = NULL;")
        .unwrap();
    writeln!(c, "    result = again({});\n  }}\n  return result;\n}}", names.join(", ")).unwrap();
}

/// Compiles the forwarding inner RMW, and callers of each function with the layer's handles, into a folder.
pub fn forwarding_into(folder: &Path) {
    forwarding_with(folder, &[]);
}

/// The same, without rmw_subscription_set_on_new_message_callback.
pub fn deaf_into(folder: &Path) {
    forwarding_with(folder, &["-DDEAF"]);
}

fn forwarding_with(folder: &Path, flags: &[&str]) {
    let written = std::fs::read_to_string(source("forwarding.c")).unwrap();
    let mut c = format!("#include \"{}\"\n", source("forwarding.c").display());
    for table::Function { name, result, parameters, .. } in functions() {
        if written.contains(&format!(" {name}(")) || written.contains(&format!("*{name}(")) {
            continue;
        }
        writeln!(c, "{result} {name}({})\n{{", declared(&parameters)).unwrap();
        for (index, c_type) in parameters.iter().enumerate() {
            writeln!(c, "  (void)a{index};").unwrap();
            if HANDLES.contains(&table::base(c_type)) {
                writeln!(c, "  if (a{index}) {{ is_ours(a{index}); }}").unwrap();
            }
        }
        writeln!(c, "  return ({result})0;\n}}").unwrap();
    }
    let file = folder.join("all_forwarding.c");
    std::fs::write(&file, c).unwrap();
    compile_with(&folder.join(format!("lib{FORWARDING}.so")), &[&file], flags);
    with_handles_into(folder);
}

/// Types whose first member is the identifier of the RMW that made them.
const HANDLES: [&str; 7] = [
    "rmw_node_t",
    "rmw_publisher_t",
    "rmw_subscription_t",
    "rmw_client_t",
    "rmw_service_t",
    "rmw_guard_condition_t",
    "rmw_event_t",
];

/// Generates calls of all functions that take a publisher, a subscription or an event, with the given ones, and nulls for the rest.
fn with_handles_into(folder: &Path) {
    let mut c = String::from("#include \"headers.h\"\n#include <string.h>\n");
    let mut names = Vec::new();
    for table::Function { name, parameters, .. } in functions() {
        let gpu = ["rmw_publisher_t", "rmw_subscription_t", "rmw_event_t"];
        let is_of_them = parameters.iter().any(|c_type| gpu.contains(&table::base(c_type)));
        if !is_of_them || name.contains("destroy") {
            continue;
        }
        writeln!(c, "static void call_{name}(void *function, void *publisher, void *subscription, void *event)\n{{")
            .unwrap();
        writeln!(c, "  (void)publisher; (void)subscription; (void)event;").unwrap();
        for (index, c_type) in parameters.iter().enumerate() {
            writeln!(c, "  {c_type} a{index};\n  memset(&a{index}, 0, sizeof a{index});").unwrap();
            match table::base(c_type) {
                "rmw_publisher_t" => writeln!(c, "  a{index} = publisher;").unwrap(),
                "rmw_subscription_t" => writeln!(c, "  a{index} = subscription;").unwrap(),
                "rmw_event_t" if !name.ends_with("_init") => writeln!(c, "  a{index} = event;").unwrap(),
                _ => {}
            }
        }
        let arguments: Vec<String> = (0..parameters.len()).map(|index| format!("a{index}")).collect();
        writeln!(c, "  (void)((__typeof__(&{name}))function)({});\n}}", arguments.join(", ")).unwrap();
        names.push(name);
    }
    writeln!(c, "typedef void (*call)(void *, void *, void *, void *);").unwrap();
    writeln!(c, "struct {{ const char *name; call call; }} double_handle_calls[] = {{").unwrap();
    names.iter().for_each(|name| writeln!(c, "  {{\"{name}\", call_{name}}},").unwrap());
    writeln!(c, "  {{NULL, NULL}},\n}};").unwrap();
    let file = folder.join("with_handles.c");
    std::fs::write(&file, c).unwrap();
    compile(&folder.join("libwith_handles.so"), &[&file]);
}

/// Compiles the caller of every function into a folder.
pub fn caller_into(folder: &Path) {
    let mut c = format!("#include \"{}\"\n", source("caller_head.c").display());
    let functions = functions();
    for table::Function { name, result, parameters, .. } in &functions {
        writeln!(c, "static const char *call_{name}(void *function, struct record *record, int twice)\n{{\n  begin();")
            .unwrap();
        for (index, c_type) in parameters.iter().enumerate() {
            writeln!(c, "  {c_type} a{index};").unwrap();
            match (c_type.contains('*'), table::base(c_type)) {
                (true, "rosidl_message_type_support_t") => writeln!(c, "  a{index} = type_support();"),
                (true, _) => writeln!(c, "  a{index} = pointer({index});"),
                (false, "bool") => writeln!(c, "  a{index} = next_random(&seed) % 2;"),
                (false, _) => writeln!(c, "  fill_random(&seed, &a{index}, sizeof a{index});"),
            }
            .unwrap();
            writeln!(c, "  expect(&a{index}, sizeof a{index});").unwrap();
        }
        let names: Vec<String> = (0..parameters.len()).map(|index| format!("a{index}")).collect();
        writeln!(c, "  ready(record, twice ? function : NULL);").unwrap();
        writeln!(c, "  {result} result = ((__typeof__(&{name}))function)({});", names.join(", ")).unwrap();
        writeln!(c, "  return verdict(record, \"{name}\", twice ? 2 : 1, &result, sizeof result);\n}}").unwrap();
    }
    writeln!(c, "typedef const char *(*call)(void *, struct record *, int);").unwrap();
    writeln!(c, "struct {{ const char *name; call call; }} double_calls[] = {{").unwrap();
    for function in &functions {
        writeln!(c, "  {{\"{0}\", call_{0}}},", function.name).unwrap();
    }
    writeln!(c, "  {{NULL, NULL}},\n}};").unwrap();
    let file = folder.join("caller.c");
    std::fs::write(&file, c).unwrap();
    compile(&folder.join("libcaller.so"), &[&file]);
}

fn declared(parameters: &[String]) -> String {
    if parameters.is_empty() {
        return "void".to_owned();
    }
    parameters.iter().enumerate().map(|(index, c_type)| format!("{c_type} a{index}")).collect::<Vec<_>>().join(", ")
}

/// Whether a function may write through it: a pointer to a type that is not const.
pub fn is_written(c_type: &str) -> bool {
    c_type.contains('*') && !c_type.starts_with("const ")
}

/// The element at an index of one of the doubles' arrays.
pub fn at<T: Copy>(array: *const T, place: usize) -> T {
    // SAFETY: the tests ask for places that the doubles' arrays have.
    let place = unsafe { array.add(place) };
    // SAFETY: as above.
    unsafe { place.read() }
}

/// A loaded library.
pub struct Library(*mut c_void);

impl Library {
    /// Loads it; with `globally`, its symbols are visible to other libraries.
    pub fn load(path: &Path, globally: bool) -> Self {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let scope = if globally { libc::RTLD_GLOBAL } else { libc::RTLD_LOCAL };
        // SAFETY: a C string; the libraries are the tests' own and the layer.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | scope) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded; LD_DEBUG=libs says why");
        Self(handle)
    }

    /// The address of a symbol.
    pub fn find(&self, name: &str) -> *mut c_void {
        let c_name = CString::new(name).unwrap();
        // SAFETY: a loaded library and a C string.
        let found = unsafe { libc::dlsym(self.0, c_name.as_ptr()) };
        assert!(!found.is_null(), "{name} was not found");
        found
    }
}

/// The calling thread's error, by the stand-in for rcutils.
pub fn error(rcutils: &Library) -> String {
    // SAFETY: rcutils.c has it with this type.
    let error: extern "C" fn() -> *const c_char = unsafe { std::mem::transmute(rcutils.find("double_error")) };
    // SAFETY: a C string of the thread's.
    unsafe { CStr::from_ptr(error()) }.to_string_lossy().into_owned()
}

/// The log so far.
pub fn logged(rcutils: &Library) -> String {
    // SAFETY: rcutils.c has it with this type.
    let log: extern "C" fn(*mut c_char, usize) = unsafe { std::mem::transmute(rcutils.find("double_log")) };
    let mut text = vec![0_u8; 1 << 16];
    log(text.as_mut_ptr().cast(), text.len());
    CStr::from_bytes_until_nul(&text).unwrap().to_string_lossy().into_owned()
}
