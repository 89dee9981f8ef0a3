//! Finds the workspace's programs: beside the test program or one folder up, or in the folder `examples` there.

use std::path::PathBuf;

/// The path of a program. Panics with the build command if it is not built.
pub fn find(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let folders = own.ancestors().skip(1).take(2);
    let mut places = folders.flat_map(|folder| [folder.join(name), folder.join("examples").join(name)]);
    let found = places.find(|path| path.is_file());
    found.unwrap_or_else(|| not_built(name))
}

/// Panics with the build command.
pub(crate) fn not_built(name: &str) -> ! {
    panic!("{name} is not built: cargo build -p rgaps-cli -p rgaps-manager --bins (./dev test does it first)")
}
