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
    let checked = match at.path.symlink_metadata() {
        Ok(_) => RuntimeDir::for_client(None).map(|dir| dir.is_own()).map_err(|error| error.to_string()),
        Err(_) => can_be_created(&at.path).map(|()| false),
    };
    let trouble = match checked {
        Ok(true) => {
            let full = probe(&at.path).err();
            full.map(|error| Trouble { text: format!("{}: {error}", at.path.display()), is_fatal: false })
        }
        Ok(false) => None,
        Err(text) => Some(Trouble { text, is_fatal: true }),
    };
    of_directory(&at, trouble, no_manager)
}

/// What is wrong with the directory.
struct Trouble {
    text: String,
    /// No manager can serve there, and no client can connect.
    is_fatal: bool,
}

/// Whether clients can create this directory, which does not exist: in the folder above it that does.
fn can_be_created(path: &Path) -> Result<(), String> {
    let path = RuntimeDir::check_path(path).map_err(|error| error.to_string())?;
    let existing = path.ancestors().find(|folder| folder.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    // By its mode bits root may write to /proc, but nothing can be created there.
    let is_folder = existing.is_dir() && !existing.starts_with("/proc");
    match rustix::fs::access(existing, rights) {
        Ok(()) if is_folder => Ok(()),
        Ok(()) => Err(format!("it cannot be created in {}", existing.display())),
        Err(error) => Err(format!("it cannot be created in {}: {error}", existing.display())),
    }
}

fn of_directory(at: &RuntimePath, trouble: Option<Trouble>, no_manager: Option<NoManager>) -> Finding {
    const WHAT: &str = "runtime directory";
    match trouble {
        Some(Trouble { text, is_fatal: true }) => {
            return Finding::broken(WHAT, format!("{at}; {text}"), "set RGAPS_RUNTIME_DIR to a directory of your own");
        }
        Some(Trouble { text, is_fatal: false }) => {
            let remedy = "a manager keeps notes there for its successor, and refuses new publishers and subscribers if it cannot write them: free \
                          some space, or set RGAPS_RUNTIME_DIR to a directory of your own";
            return Finding::limited(WHAT, format!("{at}; {text}"), remedy);
        }
        None => {}
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
        let of_trouble = |is_fatal| of_directory(&at, Some(Trouble { text: "no space".to_owned(), is_fatal }), None);
        let full = of_trouble(false);
        assert!(full.verdict == Verdict::Limited && full.found.ends_with("; no space"), "{full:?}");
        assert_eq!(of_trouble(true).verdict, Verdict::Broken);
        for (bad, why) in [
            ("/proc/nope", "in /proc"),
            (&*format!("/tmp/{}", "x".repeat(200)), "107 bytes"),
            ("/etc/passwd/x", "in /etc/passwd"),
        ] {
            let said = can_be_created(Path::new(bad)).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        assert_eq!(can_be_created(&std::env::temp_dir().join("rgaps-no/such/directory")), Ok(()));
        let elsewhere = NoManager { at: at.clone(), elsewhere: Some("/run/user/7/rgaps".into()) };
        let apart = of_directory(&at, None, Some(elsewhere));
        assert!(apart.verdict == Verdict::Limited && apart.remedy.contains("runs in /run/user/7/rgaps"), "{apart:?}");
        let alone = of_directory(&at, None, Some(NoManager { at: at.clone(), elsewhere: None }));
        assert_eq!(alone.verdict, Verdict::Ok);
    }
}
