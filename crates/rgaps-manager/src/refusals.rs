//! Refusals for lack of what the system grants this process, with the limit that would have to be raised.

use rgaps_control::local::Refusal;
use rgaps_os::inherited;

/// Whether an error is one for lack of descriptors, of whatever made it: EMFILE and ENFILE, as the standard library writes them.
pub(crate) fn is_of_descriptors(text: &str) -> bool {
    ["(os error 24)", "(os error 23)", "RLIMIT_NOFILE"].iter().any(|part| text.contains(part))
}

/// Something is used up, here and not at the client's.
pub(crate) fn exhausted(error: &dyn std::fmt::Display) -> Refusal {
    let text = error.to_string();
    if !is_of_descriptors(&text) {
        // EFBIG and ENOMEM, where this process may have less than there is.
        let (is_long, is_memory) = (text.contains("(os error 27)"), text.contains("(os error 12)"));
        let limits = inherited::limits().into_iter().filter(|limit| match limit.name {
            "RLIMIT_FSIZE" => is_long,
            "RLIMIT_AS" | "RLIMIT_DATA" => is_memory,
            _ => false,
        });
        let limits: Vec<String> = limits.map(|limit| limit.to_string()).collect();
        return Refusal::Exhausted(match limits.is_empty() {
            true => text,
            false => format!("rgapsd runs under {}, which is too little: raise it; {text}", limits.join(", ")),
        });
    }
    let limit = rgaps_os::descriptors::limit();
    Refusal::Exhausted(format!(
        "rgapsd may have {limit} descriptors open, and has: raise its limit (LimitNOFILE=, ulimit -Hn), or have fewer topics on this host; {text}"
    ))
}
