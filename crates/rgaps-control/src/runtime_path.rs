//! Which runtime directory a program uses by default, and why that one. Two programs that choose differently are on two hosts.
//!
//! The order is RGAPS_RUNTIME_DIR; `rgaps` in XDG_RUNTIME_DIR, if that exists and is this user's (`sudo` and `su` may leave another user's);
//! /tmp/rgaps-UID.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::variable;
use crate::local::Connection;
use crate::runtime::SOCKET_FILE;

/// A runtime directory and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePath {
    /// The directory.
    pub path: PathBuf,
    /// The reason for it.
    pub why: Why,
}

/// Why a runtime directory is the one that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The program names it.
    Named,
    /// RGAPS_RUNTIME_DIR names it.
    Variable,
    /// It is in XDG_RUNTIME_DIR.
    Xdg,
    /// It is in /tmp, since XDG_RUNTIME_DIR is not set.
    XdgUnset,
    /// It is in /tmp, since XDG_RUNTIME_DIR is no directory.
    XdgMissing(PathBuf),
    /// It is in /tmp, since XDG_RUNTIME_DIR is another user's.
    XdgForeign(PathBuf, u32),
}

/// No manager listens in the directory. Shown with the reason for the directory, and with another one in which a manager of this user listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoManager {
    /// The directory without a manager.
    pub at: RuntimePath,
    /// Another default directory of this user, in which a manager of this user listens.
    pub elsewhere: Option<PathBuf>,
}

impl RuntimePath {
    /// The directory that this process's environment selects.
    pub fn of_environment() -> Self {
        Self::choose(variable("RGAPS_RUNTIME_DIR"), variable("XDG_RUNTIME_DIR"), rustix::process::geteuid().as_raw())
    }

    fn choose(named: Option<OsString>, xdg: Option<OsString>, uid: u32) -> Self {
        if let Some(path) = named {
            return Self { path: path.into(), why: Why::Variable };
        }
        let in_tmp = |why| Self { path: in_tmp(uid), why };
        let Some(xdg) = xdg.map(PathBuf::from) else { return in_tmp(Why::XdgUnset) };
        match fs::metadata(&xdg).ok().filter(fs::Metadata::is_dir).map(|found| found.uid()) {
            Some(owner) if owner == uid => Self { path: xdg.join("rgaps"), why: Why::Xdg },
            Some(owner) => in_tmp(Why::XdgForeign(xdg, owner)),
            None => in_tmp(Why::XdgMissing(xdg)),
        }
    }

    /// The report that no manager listens here. Looks for a manager of this user in the other default directories, unless this directory was named
    /// explicitly.
    pub fn no_manager(self) -> NoManager {
        let is_default = !matches!(self.why, Why::Named | Why::Variable);
        let elsewhere = is_default.then(|| self.elsewhere()).flatten();
        NoManager { at: self, elsewhere }
    }

    fn elsewhere(&self) -> Option<PathBuf> {
        let uid = rustix::process::geteuid().as_raw();
        let xdg = variable("XDG_RUNTIME_DIR").map(|path| Path::new(&path).join("rgaps"));
        // systemd's default for XDG_RUNTIME_DIR.
        let usual = PathBuf::from(format!("/run/user/{uid}/rgaps"));
        let others = xdg.into_iter().chain([usual, in_tmp(uid)]).filter(|path| *path != self.path);
        others.into_iter().find(|path| {
            let is_ours = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == uid);
            is_ours && matches!(Connection::connect(&path.join(SOCKET_FILE)), Ok(Some(_)))
        })
    }
}

/// The directory of a user without an XDG_RUNTIME_DIR.
fn in_tmp(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/rgaps-{uid}"))
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named => f.write_str("named by the program"),
            Self::Variable => f.write_str("from RGAPS_RUNTIME_DIR"),
            Self::Xdg => f.write_str("from XDG_RUNTIME_DIR"),
            Self::XdgUnset => f.write_str("since XDG_RUNTIME_DIR is not set"),
            Self::XdgMissing(path) => write!(f, "since XDG_RUNTIME_DIR, {}, is no directory", path.display()),
            Self::XdgForeign(path, user) => {
                write!(f, "since XDG_RUNTIME_DIR, {}, is of user {user}", path.display())
            }
        }
    }
}

impl fmt::Display for RuntimePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path.display(), self.why)
    }
}

impl fmt::Display for NoManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no rgapsd runs in {}", self.at)?;
        let Some(elsewhere) = &self.elsewhere else { return Ok(()) };
        write!(
            f,
            ", but one of this user runs in {}: programs with different directories are on different hosts; give all of them \
                             the same RGAPS_RUNTIME_DIR",
            elsewhere.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_directory_comes_first_then_the_users_session_then_tmp() {
        let uid = rustix::process::geteuid().as_raw();
        let xdg = std::env::temp_dir().join(format!("rgaps-xdg-{}", std::process::id()));
        fs::create_dir(&xdg).unwrap();
        let choose = |named: Option<&str>, xdg: Option<&Path>, uid| {
            let chosen = RuntimePath::choose(named.map(Into::into), xdg.map(Into::into), uid);
            (chosen.path.to_str().unwrap().to_owned(), chosen.why)
        };
        let in_xdg = xdg.join("rgaps").to_str().unwrap().to_owned();
        assert_eq!(choose(Some("/named"), Some(&xdg), uid), ("/named".to_owned(), Why::Variable));
        assert_eq!(choose(None, Some(&xdg), uid), (in_xdg, Why::Xdg));
        assert_eq!(choose(None, None, 7), ("/tmp/rgaps-7".to_owned(), Why::XdgUnset));
        let foreign = Why::XdgForeign(xdg.clone(), uid);
        assert_eq!(choose(None, Some(&xdg), uid + 1), (format!("/tmp/rgaps-{}", uid + 1), foreign));
        fs::remove_dir(&xdg).unwrap();
        let chosen = RuntimePath::choose(None, Some(xdg.clone().into()), 7);
        assert_eq!(
            chosen.to_string(),
            format!("/tmp/rgaps-7 (since XDG_RUNTIME_DIR, {}, is no directory)", xdg.display())
        );
    }
}
