//! `rgaps hosts`: the other hosts that the manager knows, and the topics that they publish and subscribe to.

use std::collections::BTreeMap;

use rgaps::Node;
use rgaps_command::output::{self, Format, table};
use rgaps_control::text::plain;
use rgaps_control::{Running, TopicKey};
use serde::Serialize;

use crate::CommandError;

/// Topics of a host.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Topics {
    publishes: Vec<TopicKey>,
    subscribes: Vec<TopicKey>,
}

/// Runs `rgaps hosts`.
pub fn run(include_hidden: bool, format: Format) -> Result<(), CommandError> {
    // The node comes first: it may start the manager.
    let node = Node::new("rgaps hosts")?;
    let topics = node.topics()?;
    let known = Running::find().and_then(|running| running.network).unwrap_or_default();
    let found = found(
        known.names.iter().map(|name| plain(name).into_owned()),
        topics.iter().filter(|topic| include_hidden || !topic.key.is_hidden()).map(|topic| {
            let [publishing, subscribing] =
                [(topic.publishers, &topic.publishing_hosts), (topic.subscribers, &topic.subscribing_hosts)]
                    .map(|(here, hosts)| others(here, hosts));
            (&topic.key, publishing, subscribing)
        }),
    );
    if format == Format::Json {
        output::json(&found);
        return Ok(());
    }
    let mut table = table(["host", "publishes", "subscribes to"]);
    for (name, topics) in &found {
        table.add_row([name.clone(), list(&topics.publishes), list(&topics.subscribes)]);
    }
    output::line(table);
    if found.is_empty() {
        output::line("no other host is known; `rgaps doctor` says how hosts find each other");
    }
    Ok(())
}

/// The hosts without this one, which comes first if it has publishers or subscribers of the topic.
fn others(here: u32, hosts: &[String]) -> &[String] {
    if here > 0 { hosts.get(1..).unwrap_or_default() } else { hosts }
}

/// The topics of each known host, by its name.
fn found<'a>(
    names: impl Iterator<Item = String>,
    topics: impl Iterator<Item = (&'a TopicKey, &'a [String], &'a [String])>,
) -> BTreeMap<String, Topics> {
    let mut found: BTreeMap<String, Topics> = names.map(|name| (name, Topics::default())).collect();
    for (key, publishing, subscribing) in topics {
        for name in publishing {
            found.entry(name.clone()).or_default().publishes.push(key.clone());
        }
        for name in subscribing {
            found.entry(name.clone()).or_default().subscribes.push(key.clone());
        }
    }
    found
}

fn list(keys: &[TopicKey]) -> String {
    output::list(&keys.iter().map(ToString::to_string).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_topics_are_listed_too_and_each_topic_under_all_its_hosts() {
        let key = |name: &str| TopicKey::new(0, name).unwrap();
        let (camera, lidar) = (key("/camera"), key("/lidar"));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (head, arm, none) = (names(&["head"]), names(&["arm", "base"]), names(&[]));
        let topics = [(&camera, &head[..], &arm[..]), (&lidar, &head[..], &none[..])];
        let found = found(names(&["base", "spare"]).into_iter(), topics.into_iter());
        assert_eq!(found.keys().collect::<Vec<_>>(), ["arm", "base", "head", "spare"]);
        assert_eq!(found["head"].publishes, [camera.clone(), lidar]);
        assert_eq!(found["base"], Topics { publishes: Vec::new(), subscribes: vec![camera] });
        assert_eq!(found["spare"], Topics::default());
        let hosts = names(&["own (this host)", "arm (this host)"]);
        assert_eq!((others(1, &hosts), others(0, &hosts[1..])), (&hosts[1..], &hosts[1..]));
    }
}
