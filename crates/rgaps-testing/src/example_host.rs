//! A host for the examples of API documentation, which run as tests: `# let _host = rgaps_testing::example_host();`.

use std::path::{Path, PathBuf};

use crate::programs;
use crate::raw::set_variables;
use crate::runtime_dir::{RuntimeDir, VARIABLE};

/// Gives the example a runtime directory; its nodes start a manager there, which ends with the guard. Call it first, before the example has threads.
/// Panics with the build command if `rgapsd` is not built.
pub fn example_host() -> RuntimeDir {
    let rgapsd = rgapsd().unwrap_or_else(|| programs::not_built("rgapsd"));
    let dir = RuntimeDir::new("example").expect("a runtime directory for an example");
    let set = set_variables(&[
        (VARIABLE, dir.path()),
        ("RGAPSD", &rgapsd),
        ("RGAPS_NETWORK", Path::new("local")),
        ("RGAPS_DEVICE", Path::new("host")),
    ]);
    assert!(set, "example_host is called before the example has threads");
    dir
}

/// RGAPSD, or where a debug build of the workspace puts it, as seen from an example's temporary folder.
fn rgapsd() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let target = variable("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = variable("CARGO_MANIFEST_DIR")?.join("../..").join(target);
    Some(variable("RGAPSD").unwrap_or_else(|| target.join("debug/rgapsd"))).filter(|path| path.is_file())
}
