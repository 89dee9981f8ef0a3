//! The four steps of a message are events of `tracing`, by which a log follows it from process to process.

use std::collections::BTreeSet;

use crate::world::{Program, World};

const MESSAGES: usize = 8;

/// The (topic, publisher, sequence) of each event of this kind in a program's log.
fn events(program: &Program, step: &str) -> Vec<(String, String, u64)> {
    let log = program.errors();
    let lines = log.lines().filter(|line| line.contains("rgaps::message") && line.contains(&format!(" {step} ")));
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!(" {name}=")).unwrap_or_else(|| panic!("no {name}: {line}"));
        rest.split_whitespace().next().unwrap().trim_matches('"').to_owned()
    };
    lines
        .map(|line| (field(line, "topic"), field(line, "publisher"), field(line, "sequence").parse().unwrap()))
        .collect()
}

#[test]
fn a_message_is_published_sent_arrived_and_taken_in_the_logs() {
    let Some(mut world) = World::new(2) else { return };
    world.set("RGAPS_LOG", "warn,rgaps::message=trace");
    let managers = [0, 1].map(|host| world.manager(host, "rgapsd"));
    let count = MESSAGES.to_string();
    let mut subscriber = world.sub(1, "sub", &["cloud", "--type", "point_cloud", "--keep-all", "--count", &count]);
    let folder = world.series("saddle.pcd", MESSAGES);
    let arguments = ["cloud", "--input", folder.to_str().unwrap(), "--rate", "100", "--wait-for", "1"];
    let mut publisher = world.publish(0, "pub", &arguments);
    assert_eq!(publisher.summary(&world)["published"], MESSAGES);
    assert_eq!(subscriber.summary(&world)["taken"], MESSAGES);

    let published = events(&publisher, "published");
    let names: BTreeSet<_> = published.iter().map(|(topic, publisher, _)| (topic, publisher)).collect();
    assert_eq!(names.len(), 1, "{published:?}");
    assert_eq!(names.first().unwrap().0, "/cloud");
    let sequences: Vec<u64> = published.iter().map(|(_, _, sequence)| *sequence).collect();
    assert_eq!(sequences, (1..=MESSAGES as u64).collect::<Vec<u64>>());
    for (program, step) in [(&managers[0], "sent"), (&managers[1], "arrived"), (&subscriber, "taken")] {
        assert_eq!(events(program, step), published, "{step}\n{}", program.errors());
    }
}
