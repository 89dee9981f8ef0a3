//! What another host sends: on the network's control plane, and on a link.

use rgaps_control::HostId;
use rgaps_control::names::check_type;
use rgaps_control::network::fuzz_announcement;
use rgaps_control::wire::RingRequest;
use rgaps_link::assemble::fuzz_assemble;
use rgaps_link::credit::fuzz_credit;
use rgaps_link::record::fuzz_record;
use rgaps_link::ring::fuzz_ring;
use rgaps_link::tcp::fuzz_hello;
use rgaps_manager::envelope::fuzz_envelope;
use rgaps_manager::fuzz_answer;

use super::{Parsers, assert_all_plain, assert_plain};

/// The parsers.
pub const PARSERS: Parsers = &[
    ("record", fuzz_record),
    ("credit", fuzz_credit),
    ("assemble", fuzz_assemble),
    ("hello", fuzz_hello),
    ("ring", fuzz_ring),
    ("ring_request", ring_request),
    ("ring_answer", fuzz_answer),
    ("announcement", fuzz_announcement),
    ("envelope", fuzz_envelope),
];

/// A request for a ring. What passes the checks is read as the same once it is written.
fn ring_request(data: &[u8]) -> bool {
    let request = match RingRequest::of_json(data) {
        Ok(request) => request,
        Err(refusal) => {
            assert_plain(&refusal.to_string());
            return false;
        }
    };
    let text = serde_json::to_vec(&request).unwrap_or_default();
    match request.check_host(HostId([7; 16])) {
        Ok(()) => {
            assert_eq!(RingRequest::of_json(&text).as_ref(), Ok(&request));
            assert_eq!(check_type(&request.endpoint.type_name), Ok(()));
            assert_all_plain(&serde_json::to_value(&request).unwrap_or_default());
            true
        }
        Err(refusal) => {
            assert_plain(&refusal.to_string());
            false
        }
    }
}
