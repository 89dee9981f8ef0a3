//! Counts calls by name, and makes the n-th call of a name fail.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use crate::abi::{Code, Status};
use crate::calls;
use crate::lock::locked;

struct Calls {
    /// Calls from the start, and their number at the last reset.
    counts: BTreeMap<String, (u64, u64)>,
    faults: Vec<Fault>,
}

struct Fault {
    name: String,
    /// The call that fails, counted from the start; none for every call.
    call: Option<u64>,
    code: Code,
}

static CALLS: LazyLock<Mutex<Calls>> = LazyLock::new(|| {
    let wanted = std::env::var("RGAPS_TEST_STANDIN_FAIL").unwrap_or_default();
    Mutex::new(Calls { counts: BTreeMap::new(), faults: parse(&wanted) })
});

/// Counts a call; returns the injected error, if any.
pub(crate) fn count(name: &str) -> Status {
    let mut calls = locked(&CALLS);
    let (count, _) = calls.counts.entry(name.to_owned()).or_default();
    *count += 1;
    let count = *count;
    let due = |fault: &Fault| fault.name == name && fault.call.is_none_or(|call| call == count);
    match calls.faults.iter().find(|fault| due(fault)) {
        Some(fault) => Err(fault.code),
        None => Ok(()),
    }
}

/// Makes the `nth` call of this name from now fail, 1 being the next; 0 for every call. Code 0 cancels the faults of this name.
pub(crate) fn fail(name: &str, nth: u64, code: Code) {
    let mut calls = locked(&CALLS);
    if code == 0 {
        calls.faults.retain(|fault| fault.name != name);
        return;
    }
    let made = calls.counts.get(name).map_or(0, |count| count.0);
    let call = (nth > 0).then_some(made + nth);
    calls.faults.push(Fault { name: name.to_owned(), call, code });
}

/// Calls of this name since the last reset.
pub(crate) fn calls(name: &str) -> u64 {
    locked(&CALLS).counts.get(name).map_or(0, |(all, before)| all - before)
}

/// Resets the counts. Faults stay.
pub(crate) fn reset() {
    for count in locked(&CALLS).counts.values_mut() {
        count.1 = count.0;
    }
}

/// `cuMemCreate#3=2,cuEventRecord#*=999`
fn parse(text: &str) -> Vec<Fault> {
    let faults = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    faults
        .map(|item| match one(item) {
            Some(fault) => fault,
            None => panic!(
                "RGAPS_TEST_STANDIN_FAIL: {item} is not NAME#CALL=CODE with NAME an exported function, CALL from 1 or *, CODE not 0"
            ),
        })
        .collect()
}

fn one(item: &str) -> Option<Fault> {
    let (name, rest) = item.split_once('#')?;
    let (call, code) = rest.split_once('=')?;
    let call = if call == "*" { None } else { Some(call.parse().ok().filter(|call| *call > 0)?) };
    calls::is_known(name).then_some(())?;
    Some(Fault { name: name.to_owned(), call, code: code.parse().ok().filter(|code| *code != 0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_faults_is_parsed_and_mistakes_in_it_are_refused() {
        let faults = parse("cuMemCreate#3=2, cuEventRecord#*=999");
        assert_eq!(faults.len(), 2);
        assert_eq!((faults[0].name.as_str(), faults[0].call, faults[0].code), ("cuMemCreate", Some(3), 2));
        assert_eq!((faults[1].name.as_str(), faults[1].call, faults[1].code), ("cuEventRecord", None, 999));
        assert!(parse("").is_empty());
        for wrong in ["cuInit", "cuInit#1", "cuInit#0=1", "cuInit#1=0", "cuInit=1", "cuInit#x=1", "cuinit#1=1"] {
            assert!(one(wrong).is_none(), "{wrong}");
        }
    }
}
