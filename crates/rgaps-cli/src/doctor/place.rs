//! The doctor's finding about the runtime directory: its path and why, its owner, and whether it has free space.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use rgaps_control::RuntimeDir;
use rgaps_control::running::Running;
use rgaps_control::runtime_path::{NoManager, RuntimePath};

use super::Finding;

/// Bytes written as a test: as much as a manager's notes of a few topics.
const PROBE_BYTES: usize = 16 << 10;

/// The finding about the directory that programs with this environment use.
pub fn finding() -> Finding {
    let at = RuntimePath::of_environment();
    let no_manager = Running::find().is_none().then(|| at.clone().no_manager());
    // The check must not create the directory.
    let checked = at.path.symlink_metadata().map(|_| RuntimeDir::for_client(None));
    let trouble = match checked {
        Ok(Err(error)) => Some(error.to_string()),
        Ok(Ok(dir)) if dir.is_own() => probe(&at.path).err().map(|error| format!("{}: {error}", at.path.display())),
        _ => None,
    };
    of_directory(&at, trouble, no_manager)
}

fn of_directory(at: &RuntimePath, trouble: Option<String>, no_manager: Option<NoManager>) -> Finding {
    const WHAT: &str = "runtime directory";
    if let Some(trouble) = trouble {
        let remedy = "a manager keeps notes there for its successor, and refuses new publishers and subscribers if it cannot write them: free some \
                      space, or set RGAPS_RUNTIME_DIR to a directory of your own";
        return Finding::limited(WHAT, format!("{at}; {trouble}"), remedy);
    }
    match no_manager.filter(|no_manager| no_manager.elsewhere.is_some()) {
        Some(no_manager) => Finding::limited(WHAT, at.to_string(), no_manager.to_string()),
        None => Finding::ok(WHAT, at.to_string()),
    }
}

/// Tests whether the directory can be written.
fn probe(dir: &Path) -> io::Result<()> {
    let path = dir.join(format!("doctor-{}", std::process::id()));
    let mut file = rgaps_control::runtime::open_private(&path, File::options().write(true))?;
    let written = file.write_all(&[0; PROBE_BYTES]);
    std::fs::remove_file(&path)?;
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use rgaps_control::runtime_path::Why;

    #[test]
    fn the_directory_is_reported_with_its_reason_and_its_fault() {
        let at = RuntimePath { path: "/tmp/rgaps-7".into(), why: Why::XdgUnset };
        let good = of_directory(&at, None, None);
        assert_eq!(good.found, "/tmp/rgaps-7 (since XDG_RUNTIME_DIR is not set)");
        let full = of_directory(&at, Some("no space".to_owned()), None);
        assert!(full.verdict == Verdict::Limited && full.found.ends_with("; no space"), "{full:?}");
        let elsewhere = NoManager { at: at.clone(), elsewhere: Some("/run/user/7/rgaps".into()) };
        let apart = of_directory(&at, None, Some(elsewhere));
        assert!(apart.verdict == Verdict::Limited && apart.remedy.contains("runs in /run/user/7/rgaps"), "{apart:?}");
        let alone = of_directory(&at, None, Some(NoManager { at: at.clone(), elsewhere: None }));
        assert_eq!(alone.verdict, Verdict::Ok);
    }
}
