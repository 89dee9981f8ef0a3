//! Runs a test again in its own process, with settings that a process reads only at its start.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::RuntimeDir;

const VARIABLE: &str = "AGAIN_IN_A_PROCESS_OF_ITS_OWN";

/// Whether this is that process.
pub fn is_again() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Runs the current test again with these variables, and with a folder of libraries that `fill` makes and the loader searches first. Prints the
/// output of that run, or panics with it if the run fails. Returns false in the first process, and true, at once, in the second.
pub fn again_with(settings: &[(&str, &str)], fill: impl FnOnce(&Path) -> std::io::Result<()>) -> bool {
    if is_again() {
        return true;
    }
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let outcome = RuntimeDir::new("again").and_then(|folder| {
        fill(folder.path())?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", name, "--nocapture"]);
        command.env(VARIABLE, "1").env("LD_LIBRARY_PATH", folder.path());
        command.envs(settings.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value))));
        command.output()
    });
    match outcome {
        Ok(output) if output.status.success() => {
            print!("{}", String::from_utf8_lossy(&output.stdout));
            false
        }
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            panic!("with {settings:?} ({}):\n{}", output.status, String::from_utf8_lossy(&text))
        }
        Err(error) => panic!("{name} cannot run again: {error}"),
    }
}
