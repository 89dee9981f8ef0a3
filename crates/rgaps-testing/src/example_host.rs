//! A host for the examples of API documentation, which run as tests: `# let Some(_host) = rgaps_testing::example_host() else { return Ok(()) };`.

use std::path::{Path, PathBuf};

use crate::raw::set_variables;
use crate::runtime_dir::{RuntimeDir, VARIABLE};
use crate::skip::skipped;

/// Gives the example a runtime directory; its nodes start a manager there, which ends with the guard. Call it first, before the example has threads.
/// `None`, with a message, if `rgapsd` is not built.
pub fn example_host() -> Option<RuntimeDir> {
    let Some(rgapsd) = rgapsd() else {
        skipped("an example of the API: rgapsd is not built (cargo build -p rgaps-manager)");
        return None;
    };
    let Ok(dir) = RuntimeDir::new("example") else {
        skipped("an example of the API: no runtime directory can be made");
        return None;
    };
    let set = set_variables(&[
        (VARIABLE, dir.path()),
        ("RGAPSD", &rgapsd),
        ("RGAPS_NETWORK", Path::new("local")),
        ("RGAPS_DEVICE", Path::new("host")),
    ]);
    assert!(set, "example_host is called before the example has threads");
    Some(dir)
}

/// RGAPSD, or where a debug build of the workspace puts it, as seen from an example's temporary folder.
fn rgapsd() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let target = variable("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = variable("CARGO_MANIFEST_DIR")?.join("../..").join(target);
    Some(variable("RGAPSD").unwrap_or_else(|| target.join("debug/rgapsd"))).filter(|path| path.is_file())
}
