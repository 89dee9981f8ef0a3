//! The GPU publishers of this process. A message of one of them gets the gid that rmw reports for that publisher. rclcpp compares the two, and so
//! drops messages that intra-process communication has already delivered.
//!
//! A publisher's identity in the core is learnt from the descriptors that it sends. With intra-process communication it may send none. Until it
//! does, a message of this process with an unknown identity is attributed to a publisher of its topic that has sent none.

use std::sync::{PoisonError, RwLock};

use crate::sys::rmw_gid_t;

/// Identities in the core remembered for one publisher: a plain publisher has one, a relay those of others.
const IDENTITIES_MAX: usize = 64;

static PUBLISHERS: RwLock<Vec<Own>> = RwLock::new(Vec::new());

/// Where a message was published: a context and a topic. It selects the publishers that could have published it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The context's address.
    pub(crate) context: usize,
    /// Fully qualified.
    pub(crate) topic: String,
}

struct Own {
    /// The publisher's address.
    key: usize,
    place: Origin,
    gid: rmw_gid_t,
    /// The most recent is last.
    identities: Vec<u64>,
}

// SAFETY: a gid is bytes and the address of an identifier that is never unloaded.
unsafe impl Send for Own {}
// SAFETY: as above; nothing of it changes but under the lock.
unsafe impl Sync for Own {}

pub(crate) fn add(key: usize, place: Origin, gid: rmw_gid_t) {
    write(|publishers| publishers.push(Own { key, place, gid, identities: Vec::new() }));
}

pub(crate) fn remove(key: usize) {
    write(|publishers| publishers.retain(|own| own.key != key));
}

/// Records that the publisher has sent a descriptor with this identity in the core.
pub(crate) fn learn(key: usize, identity: u64) {
    write(|publishers| {
        let Some(own) = publishers.iter_mut().find(|own| own.key == key) else { return };
        own.identities.retain(|known| *known != identity);
        if own.identities.len() == IDENTITIES_MAX {
            own.identities.remove(0);
        }
        own.identities.push(identity);
    });
}

/// Whether there are any publishers there.
pub(crate) fn are_there(place: &Origin) -> bool {
    read(|publishers| publishers.iter().any(|own| own.place == *place))
}

/// The gid of this process's publisher there with this identity in the core. `None` if each of them has sent others: rclcpp must not take the message
/// for one of theirs.
pub(crate) fn gid_of(place: &Origin, identity: u64) -> Option<rmw_gid_t> {
    read(|publishers| {
        let there = || publishers.iter().filter(|own| own.place == *place);
        let known = there().find(|own| own.identities.contains(&identity));
        let found = known.or_else(|| there().find(|own| own.identities.is_empty()));
        found.map(|own| own.gid)
    })
}

fn read<R>(look: impl FnOnce(&[Own]) -> R) -> R {
    look(&PUBLISHERS.read().unwrap_or_else(PoisonError::into_inner))
}

fn write(change: impl FnOnce(&mut Vec<Own>)) {
    change(&mut PUBLISHERS.write().unwrap_or_else(PoisonError::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(byte: u8) -> rmw_gid_t {
        // SAFETY: bytes and a pointer, for which zeros are values.
        let mut gid: rmw_gid_t = unsafe { std::mem::zeroed() };
        gid.data[0] = byte;
        gid
    }

    #[test]
    fn a_publisher_is_known_by_its_descriptors_and_before_by_having_sent_none() {
        let place = |topic: &str| Origin { context: 1, topic: topic.to_owned() };
        let found = |topic: &str, identity| gid_of(&place(topic), identity).map(|gid| gid.data[0]);
        add(11, place("/a"), gid(1));
        add(12, place("/a"), gid(2));
        add(13, place("/b"), gid(3));
        assert!(are_there(&place("/b")) && !are_there(&place("/c")));
        learn(11, 100);
        assert_eq!(
            (found("/a", 100), found("/a", 200), found("/b", 100), found("/c", 100)),
            (Some(1), Some(2), Some(3), None)
        );
        learn(12, 200);
        for other in 300..400 {
            learn(12, other);
        }
        assert_eq!((found("/a", 399), found("/a", 305)), (Some(2), None));
        assert_eq!(gid_of(&Origin { context: 2, topic: "/a".to_owned() }, 100).map(|gid| gid.data[0]), None);
        for key in [11, 12, 13] {
            remove(key);
        }
        assert!(!are_there(&place("/a")));
    }
}
