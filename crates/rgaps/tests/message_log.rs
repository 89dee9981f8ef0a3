//! Who reads the log of messages may use their publisher, which is not locked then. A test of its own, since a deadlock ends its process.

use std::process::Command;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Node, Publisher};
use rgaps_testing::{RuntimeDir, manager, programs};

static PUBLISHER: OnceLock<Publisher<Bytes>> = OnceLock::new();

struct Log;

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "rgaps::message"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        PUBLISHER.get().map(Publisher::statistics);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn ends(publish: impl FnOnce() + Send + 'static) -> bool {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        tracing::subscriber::with_default(Log, publish);
        sender.send(())
    });
    receiver.recv_timeout(Duration::from_secs(30)).is_ok()
}

#[test]
fn a_reader_of_the_log_may_use_the_publisher_of_a_message() {
    let dir = RuntimeDir::new("log").unwrap();
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    let _manager = manager::start(&dir, command).unwrap();
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let publisher = PUBLISHER.get_or_init(|| node.publisher("a").unwrap());
    let loan = || publisher.loan(Bytes::new(8)).unwrap();
    let (first, second) = (loan(), loan());
    let batch_ends = ends(move || assert_eq!(publisher.publish_all(vec![first]).unwrap().len(), 1));
    let single_ends = batch_ends && ends(move || assert_eq!(second.publish().unwrap().sequence, 2));
    if !single_ends {
        eprintln!("deadlock in {}", if batch_ends { "publish" } else { "publish_all" });
        // Dropping the node would hang, too.
        std::process::exit(1);
    }
}
