//! Refusals because a limit of this process is reached (file descriptors, memory, file size); the text names the limit to raise.

use rgaps_control::local::Refusal;
use rgaps_os::inherited;

/// Whether an error of any type says that file descriptors ran out: EMFILE and ENFILE, as the standard library writes them.
pub(crate) fn is_of_fds(text: &str) -> bool {
    ["(os error 24)", "(os error 23)", "RLIMIT_NOFILE"].iter().any(|part| text.contains(part))
}

/// The refusal for an error of this process, not of the client. It names the limit of this process that is reached, if one is.
pub(crate) fn exhausted(error: &dyn std::fmt::Display) -> Refusal {
    let text = error.to_string();
    if !is_of_fds(&text) {
        // EFBIG and ENOMEM: a limit of this process may be lower than what the machine has.
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
    let limit = rgaps_os::fds::limit();
    Refusal::Exhausted(format!(
        "rgapsd may have {limit} file descriptors open, and all are: raise its limit (LimitNOFILE=, ulimit -Hn), or have fewer topics on this host; \
         {text}"
    ))
}
