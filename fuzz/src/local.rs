//! What another process of this host says or has written: clients and their manager to each other, and a manager to its successor.

use std::fmt::Debug;

use rgaps_control::local::{Body, Handed, Reply, Request, ToClient};
use rgaps_control::running::fuzz_running;
use rgaps_control::runtime::TopicNote;
use rgaps_control::spawn::fuzz_outcome;
use rgaps_control::text;
use rgaps_device::{DeviceId, DeviceKind, PoolDescription, SlabDescription};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Parsers, assert_all_plain};

/// The parsers.
pub const PARSERS: Parsers = &[
    ("request", request),
    ("to_client", to_client),
    ("pool", |data| pool(&serde_json::from_slice(data).unwrap_or_default())),
    ("outcome", fuzz_outcome),
    ("topic_note", |data| read::<TopicNote>(data).is_some()),
    ("running", fuzz_running),
];

/// A client's request, with the pools that it hands back.
fn request(data: &[u8]) -> bool {
    let Some(Request { body, .. }) = read(data) else { return false };
    if let Body::HandBack { topics } = body {
        for slot in topics.into_iter().flat_map(|topic| topic.slots) {
            if let Handed::Publisher { pool: described, .. } = slot.of {
                pool(&described);
            }
        }
    }
    true
}

/// A manager's reply or notice, with the pool that it describes.
fn to_client(data: &[u8]) -> bool {
    let Some(message) = read(data) else { return false };
    match message {
        ToClient::Reply { reply: Ok(Reply::Advertised(advertised)), .. } => {
            advertised.pool.iter().for_each(|described| _ = pool(described));
        }
        ToClient::Reply { reply: Ok(Reply::Pool(described)), .. } => {
            pool(&described);
        }
        ToClient::Reply { reply: Ok(Reply::Slabs(slabs)), .. } => {
            let _ = serde_json::from_value::<Vec<SlabDescription>>(slabs);
        }
        _ => {}
    }
    true
}

/// Reads a message as either side does: all of it can be shown, and it is read as the same once it is written.
fn read<M: Serialize + DeserializeOwned + Debug>(data: &[u8]) -> Option<M> {
    let message: M = text::from_json(data).ok()?;
    let written = serde_json::to_value(&message).unwrap_or_default();
    assert_all_plain(&written);
    let again = text::from_json::<M>(written.to_string().as_bytes()).map(|again| serde_json::to_value(again).ok());
    assert!(again.is_ok_and(|again| again.is_some_and(|again| is_same(&again, &written))), "{message:?}");
    Some(message)
}

/// Whether two messages say the same. Pools are passed on as they are, and reading a fraction may change its last bit.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_same(a, b)))
        }
        (Value::Number(a), Value::Number(b)) => a == b || a.is_f64() && b.is_f64(),
        _ => a == b,
    }
}

/// A pool's description. Of one that passes its check, the slabs are in order and as many bytes as the pool.
fn pool(described: &Value) -> bool {
    let Ok(pool) = serde_json::from_value::<PoolDescription>(described.clone()) else { return false };
    assert_eq!(serde_json::to_value(&pool).ok().and_then(|text| serde_json::from_value(text).ok()), Some(pool.clone()));
    let fds = pool.slabs.iter().filter(|slab| slab.is_present()).count();
    assert!(pool.check((pool.kind, pool.device), 64, fds + 1).is_err());
    if pool.check((pool.kind, pool.device), 64, fds).is_err() {
        return false;
    }
    assert!((1..=64).contains(&pool.slabs.len()));
    assert_eq!(pool.slabs.iter().map(|slab| u128::from(slab.bytes)).sum::<u128>(), u128::from(pool.bytes));
    let other = (DeviceKind::Host, DeviceId([1; 16]));
    assert!(other == (pool.kind, pool.device) || pool.check(other, 64, fds).is_err());
    true
}
