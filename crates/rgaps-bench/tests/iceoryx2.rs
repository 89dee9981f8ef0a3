//! The way in for programs of iceoryx2, as the examples show it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Stdio};
use std::time::Duration;

use rgaps::Node;
use rgaps::types::Bytes;
use rgaps_testing::{Child, Ended, RuntimeDir, Watchdog, programs};

const COUNT: usize = 5;

fn start(name: &str, arguments: &[&str], dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find(name));
    dir.apply(&mut command);
    command.args(arguments).env("RGAPSD", programs::find("rgapsd")).stdout(Stdio::piped());
    Child::spawn(&mut command).unwrap()
}

#[test]
fn a_program_of_iceoryx2_alone_is_told_of_each_message() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("iceoryx2").unwrap();
    // iceoryx2 has one space of names for all users.
    let topic = format!("/iceoryx2_{}", std::process::id());
    let mut bridge = start("iceoryx2_bridge", &["bytes", &topic], &dir);
    assert!(bridge.output_after("ready").is_some());
    let mut listener = start("iceoryx2_listen", &[&topic, &COUNT.to_string()], &dir);
    assert!(listener.output_after("ready").is_some());

    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let publisher = node.publisher::<Bytes>(&topic).unwrap();
    for number in 1..=COUNT {
        publisher.push(&Bytes::new(3), &[1, 2, 3]).unwrap();
        assert_eq!(listener.output_after("message ").as_deref(), Some(number.to_string().as_str()));
    }
    let ended = listener.wait_within(Duration::from_secs(20)).unwrap();
    assert!(matches!(ended, Ended::Exited(status) if status.success()), "{ended:?}");
}
