//! What ROS clients do alike, for clients in C and C++: parameters, QoS, descriptors, refusals and counters (crates/rgaps-ros-policy). A client
//! declares the parameters, publishes and receives descriptors, and logs.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use rgaps::dynamic::Kind;
use rgaps::{MessageHandle, TakeByHandleError};
use rgaps_ros_policy::descriptor::{self, DescriptorError, Fault};
use rgaps_ros_policy::parameters::{
    Names, Parameter, ParameterError, Rule, Value, of_publisher, of_subscription, offer, request,
};
use rgaps_ros_policy::payloads::{Payloads, Reason, Refusal, Severity, Taken};
use rgaps_ros_policy::qos::{Profile, RmwProfile};
use rgaps_ros_policy::status::{COUNTERS_MAX, Status};

use crate::handle::{BadHandle, Table, What};
use crate::publisher::{PUBLISHERS, rgaps_publisher_t};
use crate::raw;
use crate::sample::{hand_out, rgaps_message_handle_t, rgaps_sample_t};
use crate::status::rgaps_status_t::*;
use crate::status::{Failure, guard, guard_or, rgaps_status_t};
use crate::subscriber::{SUBSCRIBERS, rgaps_subscriber_t, timeout_of};
use crate::types::{rgaps_meta_t, rgaps_publisher_qos_t, rgaps_subscriber_qos_t};

/// Most parameters of a publisher or subscription.
pub const RGAPS_ROS_PARAMETERS_MAX: usize = 8;

/// Bytes of a parameter's name, with its zero.
const NAME_BYTES: usize = 640;

/// A publisher or subscription.
#[repr(C)]
pub enum rgaps_ros_role_t {
    /// A publisher.
    RGAPS_ROS_PUBLISHER = 0,
    /// A subscription.
    RGAPS_ROS_SUBSCRIPTION = 1,
}

/// The type of a parameter.
#[repr(C)]
pub enum rgaps_ros_type_t {
    /// A whole number.
    RGAPS_ROS_INTEGER = 0,
    /// A text.
    RGAPS_ROS_TEXT = 1,
    /// Yes or no: the number 1 or 0.
    RGAPS_ROS_FLAG = 2,
}

/// A publisher or subscription of a ROS node. Policies are numbers of rmw/types.h. One that is left to the middleware matches every peer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_ros_endpoint_t {
    /// The topic's fully qualified name, after remapping.
    pub topic: *const c_char,
    /// Distinguishes the parameters of endpoints of one node and topic; NULL or empty for none.
    pub id: *const c_char,
    /// Messages that keep-last keeps; 0 leaves the depth to the middleware.
    pub depth: u64,
    /// An rmw_qos_reliability_policy_t.
    pub reliability: u32,
    /// An rmw_qos_durability_policy_t.
    pub durability: u32,
    /// An rmw_qos_history_policy_t.
    pub history: u32,
    /// An rgaps_ros_role_t.
    pub role: u32,
}

/// A parameter to declare, read-only, and its value: first the default, which the client replaces by the node's. Texts end with a zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_ros_parameter_t {
    /// Its name, at most 639 B; an endpoint with a longer one is refused.
    pub name: [c_char; 640],
    /// What it means.
    pub description: [c_char; 256],
    /// The value of a text, cut if it is longer: no valid one is.
    pub text: [c_char; 64],
    /// The value of a number or flag.
    pub integer: i64,
    /// The smallest number.
    pub least: i64,
    /// The largest number.
    pub most: i64,
    /// An rgaps_ros_type_t.
    pub r#type: u32,
    /// 0.
    pub reserved: u32,
}

/// What becomes of the descriptors of a ROS subscription. Usable from any thread.
pub struct rgaps_ros_payloads_t {
    _handle: c_void,
}

/// Writes a line to the log of a ROS node: a warning, or if `is_warning` is 0 a line for debugging. It must not throw.
pub type rgaps_ros_log_t = Option<unsafe extern "C" fn(context: *mut c_void, is_warning: u32, text: *const c_char)>;

/// A counter of a status.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_ros_counter_t {
    /// Its name; ends with a zero.
    pub name: [c_char; 24],
    /// Its value.
    pub value: u64,
}

/// The status of a publisher or subscription on /diagnostics. Set it to zeros first, and pass the last one to each call: the level is WARN if a
/// counter that tells of a fault has grown since.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_ros_status_t {
    /// Node, endpoint and topic; ends with a zero.
    pub name: [c_char; 1024],
    /// "ok", or what went wrong and what to do; ends with a zero.
    pub message: [c_char; 512],
    /// Its counters.
    pub counters: [rgaps_ros_counter_t; 8],
    /// How many they are.
    pub count: u32,
    /// Not 0: the level is WARN.
    pub is_warning: u32,
}

const _: () = assert!(COUNTERS_MAX == 8);

#[derive(Clone)]
pub(crate) struct PayloadsObject {
    /// The subscriber's handle; 0 for none. The object itself would keep a destroyed subscriber alive.
    subscriber: u64,
    payloads: Arc<Payloads>,
    log: raw::Log,
}

static PAYLOADS: Table<PayloadsObject> = Table::new(What::Payloads);

impl From<ParameterError> for Failure {
    fn from(error: ParameterError) -> Self {
        Self::argument(error)
    }
}

impl From<DescriptorError> for Failure {
    fn from(error: DescriptorError) -> Self {
        Self::new(status_of(&error), error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Take(error) => error.into(),
            Refusal::Descriptor { ref source, .. } => Self::new(status_of(source), refusal),
        }
    }
}

fn status_of(error: &DescriptorError) -> rgaps_status_t {
    match error.fault {
        Fault::Layout => RGAPS_WRONG_VERSION,
        Fault::Kind => RGAPS_WRONG_KIND,
        _ => RGAPS_INVALID_ARGUMENT,
    }
}

impl rgaps_ros_endpoint_t {
    fn read(&self) -> Result<(Names<'_>, Profile), Failure> {
        let id = raw::optional_text(self.id, "id")?.unwrap_or_default();
        let Self { reliability, durability, history, depth, .. } = *self;
        let profile = RmwProfile { reliability, durability, history, depth };
        Ok((Names { topic: raw::text(self.topic, "topic")?, id }, profile.into()))
    }
}

impl rgaps_ros_parameter_t {
    fn of(parameter: &Parameter) -> Self {
        let (r#type, integer, text) = match &parameter.default {
            Value::Integer(number) => (rgaps_ros_type_t::RGAPS_ROS_INTEGER, *number, ""),
            Value::Flag(flag) => (rgaps_ros_type_t::RGAPS_ROS_FLAG, i64::from(*flag), ""),
            Value::Text(text) | Value::Other(text) => (rgaps_ros_type_t::RGAPS_ROS_TEXT, 0, text.as_str()),
        };
        let (least, most) =
            if let Rule::Integer(range) = &parameter.rule { (*range.start(), *range.end()) } else { (0, 0) };
        Self {
            name: text_of::<NAME_BYTES>(&parameter.name),
            description: text_of(parameter.description),
            text: text_of(text),
            integer,
            least,
            most,
            r#type: r#type as u32,
            reserved: 0,
        }
    }
}

fn check_names(parameters: &[Parameter]) -> Result<(), Failure> {
    let longest = NAME_BYTES - 1;
    match parameters.iter().find(|parameter| parameter.name.len() > longest) {
        None => Ok(()),
        Some(Parameter { name, .. }) => Err(Failure::argument(format_args!(
            "the name of parameter {name} has {} B, and at most {longest} B are allowed; shorten the topic or the id",
            name.len()
        ))),
    }
}

/// The values in the caller's parameters.
fn values<const N: usize>(parameters: *const rgaps_ros_parameter_t, count: u64) -> Result<[Value; N], Failure> {
    let wrong_count = || {
        Failure::argument(format_args!(
            "{count} parameters were given, but the endpoint has {N}; pass all, in their order"
        ))
    };
    if count != N as u64 {
        return Err(wrong_count());
    }
    let read = raw::slice(parameters, count, "parameters")?.iter().map(|parameter| match parameter.r#type {
        0 => Ok(Value::Integer(parameter.integer)),
        1 => {
            let bytes: Vec<u8> = parameter.text.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
            Ok(Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
        }
        2 => Ok(Value::Flag(parameter.integer != 0)),
        other => Err(Failure::argument(format_args!("there is no type {other} of parameters"))),
    });
    let read: Vec<Value> = read.collect::<Result<_, _>>()?;
    read.try_into().map_err(|_| wrong_count())
}

/// The parameters of a publisher or subscription. Declare each, read-only, set its value, and pass all to `rgaps_ros_publisher_qos` or
/// `rgaps_ros_subscriber_qos`. The last one, rgaps.device, is the node's: the device for `rgaps_node_create` if it is not empty.
///
/// @param parameters  an array of RGAPS_ROS_PARAMETERS_MAX elements
/// @param count       how many they are
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_parameters(
    endpoint: Option<&rgaps_ros_endpoint_t>,
    parameters: *mut rgaps_ros_parameter_t,
    count: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    guard(|| {
        let endpoint = endpoint.ok_or_else(|| Failure::null("endpoint"))?;
        let (names, profile) = endpoint.read()?;
        let all = match endpoint.role {
            0 => of_publisher(names, &profile).to_vec(),
            1 => of_subscription(names).to_vec(),
            role => {
                return Err(Failure::argument(format_args!("role is {role}, neither a publisher nor a subscription")));
            }
        };
        let places = raw::places(parameters, RGAPS_ROS_PARAMETERS_MAX as u64, "parameters")?;
        let count = count.ok_or_else(|| Failure::null("count"))?;
        check_names(&all)?;
        for (place, parameter) in places.iter_mut().zip(&all) {
            place.write(rgaps_ros_parameter_t::of(parameter));
        }
        count.write(all.len() as u64);
        Ok(())
    })
}

/// What a publisher offers in the core, by its profile and the values of its parameters. The error of a wrong value names the parameter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_publisher_qos(
    endpoint: Option<&rgaps_ros_endpoint_t>,
    parameters: *const rgaps_ros_parameter_t,
    count: u64,
    qos: Option<&mut MaybeUninit<rgaps_publisher_qos_t>>,
) -> rgaps_status_t {
    guard(|| {
        let (names, profile) = endpoint.ok_or_else(|| Failure::null("endpoint"))?.read()?;
        let offered = offer(names, &profile, &values(parameters, count)?)?;
        qos.ok_or_else(|| Failure::null("qos"))?.write(rgaps_publisher_qos_t::of(&offered.qos));
        Ok(())
    })
}

/// What a subscription requests in the core, by its profile and the values of its parameters: `slack` messages more than ROS keeps.
///
/// @param payload_timeout_ns  how long a take by handle waits
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_subscriber_qos(
    endpoint: Option<&rgaps_ros_endpoint_t>,
    parameters: *const rgaps_ros_parameter_t,
    count: u64,
    qos: Option<&mut MaybeUninit<rgaps_subscriber_qos_t>>,
    payload_timeout_ns: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    guard(|| {
        let (names, profile) = endpoint.ok_or_else(|| Failure::null("endpoint"))?.read()?;
        let asked = request(names, &profile, &values(parameters, count)?)?;
        let qos = qos.ok_or_else(|| Failure::null("qos"))?;
        let timeout = payload_timeout_ns.ok_or_else(|| Failure::null("payload_timeout_ns"))?;
        qos.write(rgaps_subscriber_qos_t::of(&asked.qos));
        timeout.write(u64::try_from(asked.payload_timeout.as_nanos()).unwrap_or(u64::MAX));
        Ok(())
    })
}

/// Refuses a descriptor that contradicts itself: `RGAPS_WRONG_VERSION` for a handle of another layout, `RGAPS_WRONG_KIND` for one of another kind,
/// else `RGAPS_INVALID_ARGUMENT`. Only a take tells whether its message exists.
///
/// @param handle  the descriptor's first 88 bytes
/// @param meta    its metadata, with the kind that is needed
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_descriptor_check(
    handle: Option<&rgaps_message_handle_t>,
    meta: Option<&rgaps_meta_t>,
) -> rgaps_status_t {
    guard(|| {
        let meta = meta.ok_or_else(|| Failure::null("meta"))?;
        check(Kind::from_code(meta.kind)?, handle.ok_or_else(|| Failure::null("handle"))?, meta)?;
        Ok(())
    })
}

fn check(kind: Kind, handle: &rgaps_message_handle_t, meta: &rgaps_meta_t) -> Result<MessageHandle, DescriptorError> {
    let handle = (*handle).into();
    descriptor::check(kind, &handle, raw::meta_bytes(meta, kind.encoded_bytes()))?;
    Ok(handle)
}

/// Makes what takes, counts and logs the descriptors of a ROS subscription.
///
/// @param subscriber          its core subscriber; NULL for a program that only refuses
/// @param payload_timeout_ns  how long a take by handle waits
/// @param log                 gets each refusal once for each publisher and reason, among the last 64; if more arrive, one a second. May be NULL
/// @param context             passed to `log`; kept until `rgaps_ros_payloads_destroy`, and used by calls that run then
/// @param payloads            destroy it with `rgaps_ros_payloads_destroy`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_payloads_create(
    subscriber: *const rgaps_subscriber_t,
    payload_timeout_ns: u64,
    log: rgaps_ros_log_t,
    context: *mut c_void,
    payloads: Option<&mut MaybeUninit<*mut rgaps_ros_payloads_t>>,
) -> rgaps_status_t {
    guard(|| {
        let out = payloads.ok_or_else(|| Failure::null("payloads"))?;
        let object = if subscriber.is_null() { None } else { Some(SUBSCRIBERS.look_up(subscriber as u64)?) };
        let topic = object.as_ref().map_or("", |object| object.subscriber.topic());
        let payloads = Arc::new(Payloads::new(topic, timeout_of(payload_timeout_ns)));
        let object = PayloadsObject { subscriber: subscriber as u64, payloads, log: raw::Log::new(log, context) };
        out.write(crate::node::handle(&PAYLOADS, object)?);
        Ok(())
    })
}

/// Destroys it. NULL is not an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_payloads_destroy(payloads: *mut rgaps_ros_payloads_t) {
    let _ = guard(|| {
        if !payloads.is_null() {
            PAYLOADS.remove(payloads as u64)?;
        }
        Ok(())
    });
}

/// Takes the message of a descriptor. Returns `RGAPS_NO_MESSAGE` if there is none and that is no fault: the message is early, or the subscriber was
/// interrupted or destroyed. A descriptor or message that is wrong is a refusal, which is counted and logged; a wrong argument is none, nor is
/// `RGAPS_NO_SPACE`.
///
/// @param handle   the descriptor's first 88 bytes; it may be wrong
/// @param meta     its metadata; it may be wrong
/// @param stream   NULL waits for the message's bytes; else the address of a stream, as for `rgaps_subscriber_take_by_handle_on`
/// @param message  release it with `rgaps_sample_release`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_payloads_take(
    payloads: *const rgaps_ros_payloads_t,
    handle: Option<&rgaps_message_handle_t>,
    meta: Option<&rgaps_meta_t>,
    stream: Option<&*mut c_void>,
    message: Option<&mut MaybeUninit<*mut rgaps_sample_t>>,
) -> rgaps_status_t {
    let given = guard_or(|| {
        let PayloadsObject { subscriber, payloads, log } = PAYLOADS.look_up(payloads as u64)?;
        let object = match SUBSCRIBERS.look_up(subscriber) {
            Err(BadHandle::Released(_)) => return Ok(RGAPS_NO_MESSAGE),
            found => found?,
        };
        let handle = handle.ok_or_else(|| Failure::null("handle"))?;
        let meta = meta.ok_or_else(|| Failure::null("meta"))?;
        let out = message.ok_or_else(|| Failure::null("message"))?;
        let stream = stream.and_then(|stream| raw::stream(&object.node, *stream));
        let take = |handle: &MessageHandle, timeout: Duration| {
            let taken = object.subscriber.take_by_handle_unless(handle, timeout, stream.as_ref(), || object.is_over());
            let is_interrupted =
                |error: &TakeByHandleError| matches!(error, TakeByHandleError::NotHere { .. }) && object.is_over();
            taken.map_err(|error| if is_interrupted(&error) { None } else { Some(error) })
        };
        let kind = object.subscriber.kind();
        // Another kind's member of the union may be uninitialised, so it is not read.
        let named = descriptor::check_kind_of_metadata(kind, meta.kind).and_then(|()| check(kind, handle, meta));
        match payloads.take(named, take, |severity, text| log.line(severity == Severity::Warning, text)) {
            Taken::Sample(sample) => out.write(hand_out(&object.node, sample)?),
            Taken::Nothing => return Ok(RGAPS_NO_MESSAGE),
            Taken::Refused(refusal) => return Err(refusal.into()),
        };
        Ok(RGAPS_OK)
    });
    given.unwrap_or_else(|status| status)
}

/// Counts and logs a refusal that the program found itself.
///
/// @param publisher  `publisher` of the descriptor's handle
/// @param status     the reason, by which log lines of one publisher differ
/// @param text       the line for the log
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_payloads_refuse(
    payloads: *const rgaps_ros_payloads_t,
    publisher: u64,
    status: u32,
    text: *const c_char,
) -> rgaps_status_t {
    guard(|| {
        let PayloadsObject { payloads, log, .. } = PAYLOADS.look_up(payloads as u64)?;
        let text = raw::text(text, "text")?;
        let line = |_, text: &str| log.line(true, text);
        payloads.refuse(publisher, Reason::Client(status), || text.to_owned(), line);
        Ok(())
    })
}

/// Counters of descriptors.
///
/// @param refused  those whose message could not be taken
/// @param early    those of messages that were published before the subscriber existed
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_payloads_counts(
    payloads: *const rgaps_ros_payloads_t,
    refused: Option<&mut MaybeUninit<u64>>,
    early: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    guard(|| {
        let counts = PAYLOADS.look_up(payloads as u64)?.payloads.counts();
        let early = early.ok_or_else(|| Failure::null("early"))?;
        refused.ok_or_else(|| Failure::null("refused"))?.write(counts.refused);
        early.write(counts.early);
        Ok(())
    })
}

/// The status of a subscription on /diagnostics.
///
/// @param node    the ROS node's fully qualified name
/// @param status  its last status, or zeros; the new one if the call succeeds
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_payloads_status(
    payloads: *const rgaps_ros_payloads_t,
    node: *const c_char,
    status: Option<&mut rgaps_ros_status_t>,
) -> rgaps_status_t {
    guard(|| {
        let PayloadsObject { subscriber, payloads, .. } = PAYLOADS.look_up(payloads as u64)?;
        let subscriber = SUBSCRIBERS.look_up(subscriber)?.subscriber;
        let (node, status) = (raw::text(node, "node")?, status.ok_or_else(|| Failure::null("status"))?);
        let (topic, statistics) = (payloads.topic(), subscriber.statistics());
        status.set(&Status::of_subscription(node, topic, &statistics, payloads.counts(), &status.values()));
        Ok(())
    })
}

/// The status of a publisher on /diagnostics. Parameters are those of `rgaps_ros_payloads_status`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_publisher_status(
    publisher: *const rgaps_publisher_t,
    node: *const c_char,
    status: Option<&mut rgaps_ros_status_t>,
) -> rgaps_status_t {
    guard(|| {
        let publisher = PUBLISHERS.look_up(publisher as u64)?.publisher;
        let (node, status) = (raw::text(node, "node")?, status.ok_or_else(|| Failure::null("status"))?);
        let (statistics, subscribers) = (publisher.statistics(), publisher.subscriber_count() as u64);
        status.set(&Status::of_publisher(node, publisher.topic(), &statistics, subscribers, &status.values()));
        Ok(())
    })
}

impl rgaps_ros_status_t {
    fn values(&self) -> Vec<u64> {
        self.counters.iter().take(self.count as usize).map(|counter| counter.value).collect()
    }

    fn set(&mut self, status: &Status) {
        self.name = text_of(&status.name);
        self.message = text_of(&status.message);
        for (place, (name, value)) in self.counters.iter_mut().zip(&status.counters) {
            *place = rgaps_ros_counter_t { name: text_of(name), value: *value };
        }
        self.count = status.counters.len() as u32;
        self.is_warning = u32::from(status.is_warning);
    }
}

/// A text that ends with a zero, cut if it is too long.
fn text_of<const N: usize>(text: &str) -> [c_char; N] {
    let end = (0..N.min(text.len() + 1)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let mut fixed = [0; N];
    fixed.iter_mut().zip(text[..end].bytes()).for_each(|(to, byte)| *to = byte as c_char);
    fixed
}

#[cfg(test)]
mod tests {
    use rgaps_ros_policy::payloads::Counts;

    use super::*;

    fn length(text: &[c_char]) -> usize {
        text.iter().position(|byte| *byte == 0).unwrap()
    }

    #[test]
    fn every_parameter_fits_its_struct() {
        let (topic, id) = (format!("/{}", "t".repeat(254)), "i".repeat(255));
        let names = Names { topic: &topic, id: &id };
        let publisher = of_publisher(names, &Profile::default());
        let all: Vec<Parameter> = publisher.into_iter().chain(of_subscription(names)).collect();
        for parameter in &all {
            let made = rgaps_ros_parameter_t::of(parameter);
            assert_eq!(length(&made.name), parameter.name.len());
            assert_eq!(length(&made.description), parameter.description.len(), "{}", parameter.name);
        }
        assert!(of_publisher(names, &Profile::default()).len() <= RGAPS_ROS_PARAMETERS_MAX);
    }

    #[test]
    fn parameters_whose_names_do_not_fit_are_refused() {
        let topic = format!("/{}", "t".repeat(NAME_BYTES - 40));
        let of = |id| of_subscription(Names { topic: &topic, id });
        assert!(check_names(&of("")).is_ok());
        assert!(check_names(&of("an_id_that_is_too_long")).is_err());
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters() {
        assert_eq!(length(&text_of::<4>("abcdef")), 3);
        assert_eq!(length(&text_of::<4>("ab\u{20ac}")), 2);
    }

    #[test]
    fn a_status_remembers_its_counters_for_the_next_one() {
        let mut status = rgaps_ros_status_t {
            name: [0; 1024],
            message: [0; 512],
            counters: [rgaps_ros_counter_t { name: [0; 24], value: 0 }; 8],
            count: 0,
            is_warning: 0,
        };
        let statistics = rgaps::SubscriberStatistics { lost: 3, ..Default::default() };
        for is_warning in [1, 0] {
            let next = Status::of_subscription("/n", "/t", &statistics, Counts::default(), &status.values());
            status.set(&next);
            assert_eq!((status.is_warning, status.count), (is_warning, 8));
        }
        let longest = Status {
            counters: vec![("a", 1)],
            message: "x".repeat(2000),
            ..Status::of_subscription("/n", "/t", &statistics, Counts::default(), &[])
        };
        status.set(&longest);
        assert_eq!((length(&status.message), status.count), (511, 1));
    }
}
