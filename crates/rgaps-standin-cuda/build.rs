//! Linker flags of the shared library: the name that it is found by, and that it is never unloaded.

fn main() {
    // Once it is loaded by its path, who asks the loader for this name gets it, and not the driver that may be installed. It is the name
    // that cudarc asks for first.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    // Its worker threads run until the process ends.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
