//! A forged peer that sends frames with random envelopes: no panic, no hang, and what is honest arrives afterwards.

use rgaps_link::record::MessageHead;
use rgaps_link::{LinkSender, MessageId, MessageName};

use super::lies::link;
use super::walk::Random;
use super::*;
use crate::envelope::{Envelope, Gap};

#[test]
fn forged_frames_neither_end_the_manager_nor_the_topic() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut below = |n: u64| random.below(n);
    let numbers = [0, 1, 2, 3, 50, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 63, u64::MAX - 1, u64::MAX];
    let config = Config { keep_all_timeout_ms: 20, peer_timeout_ms: 60_000, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 20, config);
    let mut subscriber = pair.subscriber();
    for _ in 0..60 {
        let mut request = super::lies::request(&pair, FROM);
        let number = |below: &mut dyn FnMut(u64) -> u64| numbers[below(numbers.len() as u64) as usize];
        request.published = (0..below(4)).map(|n| (n, number(&mut below))).collect();
        let mut offered = None;
        until("an offer", || {
            offered = pair.to().offer(&request).ok();
            offered.is_some()
        });
        let offer = offered.unwrap();
        let mut link = link(&offer);
        let mut id = 1;
        for _ in 0..below(40) {
            let info = MessageInfo { source_host: FROM.0, host_epoch: number(&mut below), ..MessageInfo::default() };
            let gap = Gap { previous: number(&mut below), is_notice: below(2) == 0 };
            let envelope = Envelope::seal(&info, number(&mut below) as u32, gap, b"meta");
            let name = MessageName { publisher: below(4), sequence: number(&mut below) };
            let total = [0, 1, 5, 5000, 1 << 20, 1 << 40][below(6) as usize];
            let head = MessageHead { id: MessageId(id), name, total };
            id += 1 + below(2);
            let first = vec![3; total.min([0, 1, 5, 4000][below(4) as usize]) as usize];
            if link.wait_for_room(5000, Duration::from_secs(2)).is_err()
                || link.post(&[head.first(envelope.bytes(), &first)]).is_err()
            {
                break;
            }
            if below(2) == 0 && (first.len() as u64) < total {
                let more = vec![4; (total - first.len() as u64).min(4000) as usize];
                if link.wait_for_room(5000, Duration::from_secs(2)).is_err()
                    || link.post(&[head.part(first.len() as u64, &more)]).is_err()
                {
                    break;
                }
            }
        }
        link.close();
        drop(link);
        until("the end of the impostor's link", || {
            let mut to = pair.to();
            to.read_events();
            !to.is_connected()
        });
        while subscriber.reader.take().unwrap().is_some() {}
    }
    pair.announce(true);
    for _ in 0..5 {
        pair.send(100);
        let sequence = pair.sequence;
        assert!(subscriber.sequences_to(sequence).ends_with(&[sequence]));
    }
}
