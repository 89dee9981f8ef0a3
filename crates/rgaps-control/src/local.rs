//! The protocol between a client and its manager: JSON messages with descriptors beside them, over a Unix SOCK_SEQPACKET socket.
//!
//! A client asks (`Request`), the manager answers each (`Reply`, same id) and sometimes speaks up by itself (`Notice`). Nothing here
//! is on the path of a message: a topic is set up with it, then the segment is all that is touched.
//!
//! Trusts      nothing: a message longer than 64 KiB, with more than 136 descriptors, or that is no JSON of ours, ends the connection
//!             with a named error. The manager takes the peer's credentials from the kernel.

mod connection;
mod messages;

pub use connection::{Connection, DESCRIPTORS_MAX, Listener, LocalError, MESSAGE_BYTES_MAX, Packet, PeerCredentials};
pub use messages::{
    Advertised, Body, HANDED_SEATS_MAX, Handed, HandedSeat, HandedTopic, Notice, NoticedSubscriber, PROTOCOL_VERSION,
    Refusal, RefusedSeat, Reply, Request, Role, Seat, Subscribed, TOLD_SUBSCRIBERS_MAX, ToClient, TopicSummary,
    Welcome,
};

/// Parses a request as the manager does; for the fuzzer and its corpus.
pub fn fuzz_request(data: &[u8]) {
    if let Ok(request) = crate::text::from_json::<Request>(data) {
        let text = serde_json::to_vec(&request);
        assert!(text.is_ok_and(|text| crate::text::from_json::<Request>(&text).is_ok()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_of_requests_is_survived() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/request");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().collect();
        assert!(files.len() >= 5, "the corpus is gone");
        for file in files {
            fuzz_request(&std::fs::read(file.path()).unwrap());
        }
    }
}
