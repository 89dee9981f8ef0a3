//! The runtime directory: its owner, the modes of its files, and a manager without room in it.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use rgaps_testing::{Child, skipped};

use crate::{Host, outcome, until};

/// Whether this machine permits mounts. Reports the test as skipped if not.
fn can_mount() -> bool {
    match Command::new("unshare").args(["--mount", "true"]).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            skipped(format!("no mount namespaces here: {}", String::from_utf8_lossy(&output.stderr).trim()));
            false
        }
        Err(error) => {
            skipped(format!("no unshare command: {error}"));
            false
        }
    }
}

/// Runs a shell script in mount and PID namespaces of its own, which end with it. $DIR is the host's folder, and PATH has the programs.
fn in_namespace(host: &Host, text: &str) -> (bool, String, String) {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", text]);
    for (key, value) in host.program("rgapsd").get_envs() {
        value.map(|value| command.env(key, value));
    }
    let programs = rgaps_testing::programs::find("rgapsd").parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).env("DIR", host.path()).env_remove("RGAPS_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR");
    outcome(command.env("RGAPS_AUTOSTART", "0").stdin(Stdio::null()))
}

#[test]
fn files_of_the_runtime_directory_have_their_modes_whatever_the_umask_is() {
    for umask in ["000", "077", "777"] {
        let host = Host::new("umask");
        let dir = host.path().join("dir");
        let start = |program: &str| {
            let mut command = host.program("rgapsd");
            let path = command.get_program().to_owned();
            command = Command::new("sh");
            for (key, value) in host.program("rgapsd").get_envs() {
                value.map(|value| command.env(key, value));
            }
            command.args(["-c", &format!("umask {umask}; exec {program} \"$@\"")]).arg(path);
            command.env("RGAPS_RUNTIME_DIR", &dir);
            command
        };
        let group = rustix::process::getegid().as_raw().to_string();
        // A client starts the manager, and so makes some of the files.
        let rgaps = rgaps_testing::programs::find("rgaps");
        let (good, _, errors) =
            outcome(start(&rgaps.display().to_string()).args(["topic", "list"]).env("RGAPS_SOCKET_GROUP", &group));
        assert!(good, "umask {umask}: {errors}");
        let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/ramp.npy");
        let mut publish = start(&rgaps.display().to_string());
        publish.args(["pub", "array", "--input", image, "--rate", "10", "--loop"]).stdout(Stdio::null());
        let _publisher = Child::spawn(&mut publish).unwrap();
        let names = || -> Vec<String> {
            let entries = std::fs::read_dir(&dir).unwrap().flatten();
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
        };
        until("the topic is noted", || names().iter().any(|name| name.starts_with("topic-")).then_some(()));
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&dir), 0o710, "umask {umask}");
        let names = names();
        assert!(names.len() >= 6 && names.iter().any(|name| name.starts_with("client-")), "{names:?}");
        for name in names.iter().filter(|name| !name.ends_with(".new")) {
            let Ok(found) = std::fs::metadata(dir.join(name)) else { continue };
            let wanted = match name.as_str() {
                "rgapsd.sock" => 0o660,
                "config.toml" => 0o644,
                _ => 0o600,
            };
            assert_eq!(found.permissions().mode() & 0o7777, wanted, "umask {umask}: {name}");
        }
    }
}

#[test]
fn a_client_is_told_of_this_users_manager_in_the_other_default_directory() {
    if !can_mount() {
        return;
    }
    let host = Host::new("elsewhere");
    // The other default directory is in /tmp; the namespace has its own /tmp.
    let uid = rustix::process::geteuid().as_raw();
    let text = r#"
set -e
mkdir -p -m 700 /run/rgaps-test && mount -t tmpfs none /run/rgaps-test && mkdir -m 700 /run/rgaps-test/xdg
mount -t tmpfs -o mode=1777 none /tmp
rgapsd 2>/dev/null &
rgaps ready --timeout 45
XDG_RUNTIME_DIR=/run/rgaps-test/xdg rgaps topic list && exit 9
XDG_RUNTIME_DIR=/run/rgaps-test/xdg rgaps doctor || true
XDG_RUNTIME_DIR=/nowhere rgaps topic list && XDG_RUNTIME_DIR=/nowhere rgaps doctor
"#;
    let (_, said, errors) = in_namespace(&host, text);
    assert!(said.contains(&format!("serves /tmp/rgaps-{uid}")), "{said}{errors}");
    assert!(errors.contains("no rgapsd runs in /run/rgaps-test/xdg/rgaps (from XDG_RUNTIME_DIR)"), "{errors}");
    assert!(errors.contains(&format!("one of this user runs in /tmp/rgaps-{uid}")), "{errors}");
    assert!(errors.contains("RGAPS_RUNTIME_DIR"), "what to do: {errors}");
    assert!(said.contains("since XDG_RUNTIME_DIR, /nowhere, is no directory"), "the doctor says why: {said}{errors}");
}

#[test]
fn a_manager_starts_on_a_full_disk_and_log_doctor_and_clients_say_what_it_lacks() {
    if !can_mount() {
        return;
    }
    let host = Host::new("full-disk");
    let text = r#"
set -e
mount -t tmpfs -o size=256k none "$DIR"
mkdir -m 700 "$DIR/first" "$DIR/second"
export RGAPS_RUNTIME_DIR="$DIR/first"
rgapsd 2>/dev/null & first=$!
rgaps ready --timeout 45
kill -9 $first; wait $first || true
fill() { cat /dev/zero >>"$DIR/all" 2>/dev/null || true; }
fill
for dir in first second; do
    export RGAPS_RUNTIME_DIR="$DIR/$dir"
    echo "== $dir"; echo "== $dir" >&2
    # Its log has no room either where a client starts it.
    RGAPS_AUTOSTART=1 rgaps topic list
    rgaps doctor || true
    kill $(rgaps --json ready --timeout 0 | sed 's/.*"pid":\([0-9]*\).*/\1/')
    while [ -e "$RGAPS_RUNTIME_DIR/rgapsd.sock" ]; do :; done
    mkdir -p -m 700 "$RGAPS_RUNTIME_DIR"
    fill
    rgapsd & second=$!
    rgaps ready --timeout 45
    kill $second; wait $second
done
"#;
    let (good, said, errors) = in_namespace(&host, text);
    assert!(good, "{said}{errors}");
    for (dir, part) in ["first", "second"].iter().zip(errors.split("== ").skip(1)) {
        assert!(part.contains("No space left on device") && part.contains("successor"), "{dir}: {errors}");
        assert!(part.contains("WARN rgaps_manager"), "the manager's own log says so too, {dir}: {errors}");
    }
    for part in said.split("== ").skip(1) {
        assert!(part.contains("No space left on device"), "the doctor says so: {said}");
    }
}
