//! Subscriptions of one host that get the same payloads, so that the payload goes to that host once.
//!
//! ```text
//!   publishing host                         another host
//!   describe(S1) ── topic of S1 ═══════════▶ S1              S1 leads: it was there first
//!   describe(S2) ── topic of S2 ═══════════▶ S2              its first payloads, with the request to join S1's topic
//!                ◀══ "S2 has joined S1" ════                 on the topic of the publishing process
//!   describe(S2) ── the same message ──────▶ S2 at S1's topic
//! ```
//!
//! The middleware tells which subscriptions were there before a new one for the same publisher. They are a group; two groups that share a subscription become one.
//! A wrong group costs space (docs/decisions/027). On the publishing host every subscription keeps its own topic, since one block is a message of each.

use std::collections::{HashMap, HashSet};

use super::gid::Gid;

/// An identity of a host in metadata.
pub(super) type Host = String;

/// Which subscriptions get the same payloads, and who leads those of a host.
#[derive(Debug, Default)]
pub(super) struct Groups {
    of: HashMap<Gid, u64>,
    next: u64,
    leaders: HashMap<(u64, Host), Gid>,
}

impl Groups {
    /// Adds a subscription that gets what `others` get.
    pub(super) fn add(&mut self, gid: Gid, others: &[Gid]) {
        let all = || others.iter().chain([&gid]);
        let known: HashSet<u64> = all().filter_map(|other| self.of.get(other).copied()).collect();
        let group = known.iter().copied().min().unwrap_or(self.next);
        self.next = self.next.max(group + 1);
        self.of.values_mut().filter(|of| known.contains(of)).for_each(|of| *of = group);
        for other in all() {
            self.of.insert(*other, group);
        }
        self.leaders.retain(|(of, _), _| *of == group || !known.contains(of));
    }

    /// Forgets a subscription.
    pub(super) fn remove(&mut self, gid: Gid) {
        self.of.remove(&gid);
        self.leaders.retain(|_, leader| *leader != gid);
    }

    /// The subscription whose topic those of its group on this host share: the first for which this was called.
    pub(super) fn leader(&mut self, gid: Gid, host: &Host) -> Gid {
        let Some(group) = self.of.get(&gid) else { return gid };
        *self.leaders.entry((*group, host.clone())).or_insert(gid)
    }

    /// Makes a subscription lead instead of one that is not reached any more, unless another one does by now. Returns the one that leads.
    pub(super) fn replace_leader(&mut self, gid: Gid, host: &Host, lost: Gid) -> Gid {
        let Some(group) = self.of.get(&gid) else { return gid };
        let leader = self.leaders.entry((*group, host.clone())).or_insert(gid);
        if *leader == lost {
            *leader = gid;
        }
        *leader
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(number: u8) -> Gid {
        Gid([number; 16])
    }

    #[test]
    fn subscriptions_of_one_publisher_are_a_group_and_groups_that_share_one_are_one() {
        let mut groups = Groups::default();
        groups.add(gid(1), &[]);
        groups.add(gid(2), &[gid(1)]);
        groups.add(gid(3), &[]);
        groups.add(gid(4), &[gid(3)]);
        let mut leader = |of, host: &str| groups.leader(gid(of), &host.to_owned());
        assert_eq!([(1, "a"), (2, "a"), (3, "a"), (4, "b")].map(|(of, host)| leader(of, host)), [1, 1, 3, 4].map(gid));
        groups.add(gid(4), &[gid(2)]);
        let mut leader = |of| groups.leader(gid(of), &"a".to_owned());
        assert_eq!([2, 3, 4].map(&mut leader), [1, 1, 1].map(gid));
        assert_eq!(leader(9), gid(9), "nobody said with whom it belongs");
    }

    #[test]
    fn another_subscription_leads_when_nobody_reads_the_leaders_topic_any_more() {
        let mut groups = Groups::default();
        groups.add(gid(1), &[]);
        groups.add(gid(2), &[gid(1)]);
        let host = "a".to_owned();
        assert_eq!((groups.leader(gid(1), &host), groups.leader(gid(2), &host)), (gid(1), gid(1)));
        assert_eq!(groups.replace_leader(gid(2), &host, gid(1)), gid(2));
        assert_eq!(groups.leader(gid(1), &host), gid(2));
        assert_eq!(groups.replace_leader(gid(1), &host, gid(1)), gid(2), "another one leads by now");
        groups.remove(gid(2));
        assert_eq!((groups.leader(gid(1), &host), groups.leader(gid(2), &host)), (gid(1), gid(2)));
    }
}
