//! Programs in containers on a host whose manager runs outside of them, as docs/containers.md describes.
//!
//! A container here has its own mount, PID, IPC, UTS and network namespaces, and its own root with its own folders for temporary and shared-memory
//! files. Of the host it has only the folder that contains the runtime directory, the programs, and the libraries that they load. (The directory
//! itself is removed when its manager exits, and made again by the next.)

use std::io::Write;
use std::process::{Command, Stdio};

use rgaps_testing::{kill_9, skipped};

use crate::world::{Program, World, example, programs, within_limit};

/// Makes the root and enters it. $ROOT, $RUNTIME, $PROGRAMS and $DATA are paths outside; $1 is the script to run inside, by a shell that is the
/// container's first process.
const ENTER: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs none "$ROOT"
cd "$ROOT"
for part in usr bin lib lib64; do
    if [ -L /$part ]; then cp -P /$part $part
    elif [ -d /$part ]; then mkdir $part && mount --rbind -o ro /$part $part
    fi
done
mkdir proc tmp dev run run/robot programs data
mount -t proc none proc
touch dev/null && mount --bind /dev/null dev/null
mkdir dev/shm && mount -t tmpfs none dev/shm
mount --bind "$RUNTIME" run/robot
mount --bind -o ro "$PROGRAMS" programs
mount --bind -o ro "$DATA" data
exec chroot . /usr/bin/env -i PATH=/usr/bin:/bin:/programs RGAPS_RUNTIME_DIR=/run/robot/rgaps RGAPS_AUTOSTART=0 /bin/sh -c "$1"
"#;

/// Whether this machine can run containers; if not, prints why.
fn can_be() -> bool {
    let tried =
        Command::new("unshare").args(["--mount", "--pid", "--ipc", "--uts", "--net", "--fork", "true"]).output();
    match tried {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            skipped(format!("no containers here: {}", String::from_utf8_lossy(&output.stderr).trim()));
            false
        }
        Err(error) => {
            skipped(format!("no unshare command: {error}"));
            false
        }
    }
}

/// A host whose runtime directory is in a folder that can be mounted into containers.
fn world() -> Option<World> {
    let mut world = World::new(1).filter(|_| can_be())?;
    let dir = world.dir(0).path().join("rgaps");
    world.set("RGAPS_RUNTIME_DIR", dir.to_str().unwrap());
    Some(world)
}

/// A manager outside, once it serves.
fn manager(world: &World) -> Program {
    let manager = world.manager(0, "manager");
    let ready = world.command_of(0, "rgaps").args(["ready", "--timeout", "45"]).output().unwrap();
    assert!(ready.status.success(), "{}", world.logs());
    manager
}

/// Runs a shell script in its own container on a host; its output is read like that of any program.
fn contain(world: &World, host: usize, label: &str, text: &str) -> Program {
    let root = world.folder(&format!("root-{label}"));
    let mut command = world.hosts[host].command("unshare");
    command
        .args(["--mount", "--pid", "--ipc", "--uts", "--net", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", text])
        .env("ROOT", root)
        .env("RUNTIME", world.dir(host).path())
        .env("PROGRAMS", programs())
        .env("DATA", example("ramp.npy").parent().unwrap());
    world.spawn(host, label, command.stdin(Stdio::piped()))
}

#[test]
fn a_subscriber_in_a_container_reads_in_place_what_is_published_outside() {
    let Some(world) = world() else { return };
    let _manager = manager(&world);
    let subscribe = "rgaps ready --timeout 0 >&2; rgaps --json sub array --type tensor --keep-all --expect /data/ramp.npy --count 50 --timeout 45";
    let mut inside = contain(&world, 0, "inside", subscribe);
    let ramp = example("ramp.npy");
    let arguments = ["array", "--input", ramp.to_str().unwrap(), "--rate", "200", "--loop", "--wait-for", "1"];
    let _publisher = world.publish(0, "pub", &arguments);
    let received = inside.summary(&world);
    assert!(
        inside.errors().contains("a process that cannot be seen from here serves /run/robot/rgaps"),
        "{}",
        inside.errors()
    );
    let counters = (&received["taken"], &received["mismatched"], &received["copies_per_subscriber"]);
    assert_eq!(counters, (&50.into(), &0.into(), &0.into()), "{received}");
    assert_eq!(received["paths"], serde_json::json!({ "in place (loaned)": 50 }), "{received}");
    assert_eq!(received["statistics"]["lost"], 0, "{received}");
}

#[test]
fn a_publisher_in_a_container_is_read_in_another_and_outside() {
    let Some(world) = world() else { return };
    let _manager = manager(&world);
    let wish = "--type tensor --keep-all --count 50 --timeout 45";
    let mut inside = contain(&world, 0, "inside", &format!("rgaps --json sub array {wish}"));
    let arguments = [&["array"], &wish.split(' ').collect::<Vec<_>>()[..]].concat();
    let mut outside = world.sub(0, "outside", &arguments);
    let publish = "rgaps pub array --input /data/ramp.npy --rate 200 --loop --wait-for 2";
    let _publisher = contain(&world, 0, "publisher", publish);
    for received in [inside.summary(&world), outside.summary(&world)] {
        assert_eq!(received["paths"], serde_json::json!({ "in place (loaned)": 50 }), "{received}");
        assert_eq!((&received["mismatched"], &received["statistics"]["lost"]), (&0.into(), &0.into()), "{received}");
    }
}

#[test]
fn messages_held_by_a_process_killed_in_its_container_are_released() {
    let Some(world) = world() else { return };
    let _manager = manager(&world);
    // It holds its first message for ever, so that the publisher soon waits for it. On a signal, the container's first process kills it and stays,
    // with all namespaces: only the pidfd can tell the manager.
    let text = "rgaps --json sub array --type tensor --keep-all --verbose --hold-ms 600000 & read word; kill -9 $!; wait $!; echo '{}'; read word";
    let mut inside = contain(&world, 0, "inside", text);
    let ramp = example("ramp.npy");
    let arguments = ["array", "--input", ramp.to_str().unwrap(), "--rate", "200", "--loop", "--wait-for", "1"];
    let _publisher = world.publish(0, "pub", &arguments);
    inside.await_lines(&world, 1);
    let subscribers = |wanted: u64| move |info: &serde_json::Value| info["subscribers"] == wanted;
    world.await_info(0, "array", "that there is one subscriber", subscribers(1));
    let input = inside.child.std().stdin.as_mut().unwrap();
    writeln!(input, "now").unwrap();
    inside.await_lines(&world, 2);
    world.await_info(0, "array", "that the subscriber is gone", subscribers(0));
    assert!(matches!(inside.child.std().try_wait(), Ok(None)), "the container has ended");
    // The publisher, which the held message had blocked, continues.
    world.sub(0, "next", &["array", "--type", "tensor", "--count", "50", "--timeout", "45"]).summary(&world);
}

#[test]
fn a_container_whose_first_process_is_killed_leaves_nothing_behind_on_the_host() {
    let Some(world) = world() else { return };
    let _manager = manager(&world);
    let manager = world.manager_pid(0);
    let mut inside = contain(&world, 0, "inside", "rgaps --json sub array --type tensor --verbose");
    world.await_info(0, "array", "that there is one subscriber", |info| info["subscribers"] == 1);
    kill_9(inside.child.id()).unwrap();
    inside.child.std().wait().unwrap();
    let users = || world.dir(0).users().unwrap();
    let left = within_limit(|| (users() == [manager]).then_some(()));
    assert!(left.is_some(), "{:?} beside the manager, {manager}", users());
}

#[test]
fn a_container_outlives_its_manager_and_finds_the_next_one() {
    let Some(world) = world() else { return };
    let mut first = manager(&world);
    let text =
        "read word; rgaps --json sub array --type tensor --keep-all --expect /data/ramp.npy --count 50 --timeout 45";
    let mut inside = contain(&world, 0, "inside", text);
    // An orderly exit, which removes the directory.
    first.child.terminate().unwrap();
    assert!(first.child.std().wait().unwrap().success());
    let dir = world.dir(0).path().join("rgaps");
    assert!(!dir.exists());
    let _second = manager(&world);
    writeln!(inside.child.std().stdin.as_mut().unwrap(), "now").unwrap();
    let ramp = example("ramp.npy");
    let arguments = ["array", "--input", ramp.to_str().unwrap(), "--rate", "200", "--loop", "--wait-for", "1"];
    let _publisher = world.publish(0, "pub", &arguments);
    let received = inside.summary(&world);
    assert_eq!((&received["taken"], &received["mismatched"]), (&50.into(), &0.into()), "{received}");
}

#[test]
fn a_program_in_a_container_starts_no_manager_and_reports_that_none_runs() {
    let Some(world) = world() else { return };
    let mut inside = contain(&world, 0, "inside", "rgaps sub a || echo '{}'");
    inside.await_lines(&world, 1);
    assert!(
        inside.errors().contains("no rgapsd runs in /run/robot/rgaps (from RGAPS_RUNTIME_DIR), and none is started"),
        "{}",
        inside.errors()
    );
    assert!(inside.child.std().wait().is_ok());
}

#[test]
fn a_manager_that_cannot_see_its_clients_processes_refuses_them() {
    let Some(world) = world() else { return };
    let _manager = contain(&world, 0, "manager", "rgapsd");
    // The manager serves, since the runtime directory is shared. But it could not notice when the client dies.
    let socket = world.dir(0).path().join("rgaps/rgapsd.sock");
    assert!(within_limit(|| socket.exists().then_some(())).is_some(), "no manager\n{}", world.logs());
    let outside = world.command_of(0, "rgaps").args(["topic", "list"]).output().unwrap();
    let errors = String::from_utf8(outside.stderr).unwrap();
    assert!(!outside.status.success() && errors.contains("PID namespace"), "{errors}{}", world.logs());
}
