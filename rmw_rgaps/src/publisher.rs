//! Publishers of GPU topics: an inner publisher that carries descriptors. The message itself was published in the core before; the layer checks
//! that the core knows the descriptor's message.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rgaps::dynamic::Kind;
use rgaps::{MessageHandle, MessageInfo, Observer};
use rgaps_ros_policy::descriptor::check_handle;

use crate::context::Context;
use crate::descriptor::{self, Descriptor};
use crate::ffi::{fail, refuse};
use crate::inner::calls;
use crate::loans::Loans;
use crate::observed::Observed;
use crate::own::{self, Origin};
use crate::support;
use crate::sys::*;

/// The identifier in the handle of every GPU publisher, known by its address.
static IDENTIFIER: [u8; 20] = *b"rmw_rgaps_publisher\0";

/// The handle that rmw_create_publisher returns. Its first member is rmw's handle, with the identifier above.
#[repr(C)]
struct GpuPublisher {
    handle: rmw_publisher_t,
    inner: *mut rmw_publisher_t,
    kind: Kind,
    topic: String,
    type_support: *const rosidl_message_type_support_t,
    observed: Observed,
    loans: Loans,
    /// The identity in the core of its last descriptor.
    identity: AtomicU64,
    context: Arc<Context>,
}

// SAFETY: null, or a publisher that is not destroyed meanwhile.
unsafe fn of<'a>(publisher: *const rmw_publisher_t) -> Option<&'a GpuPublisher> {
    // SAFETY: as the caller says.
    let handle = unsafe { publisher.as_ref() }?;
    if !std::ptr::eq(handle.implementation_identifier, IDENTIFIER.as_ptr().cast::<c_char>()) {
        return None;
    }
    // SAFETY: only this file hands out that identifier, in the first member of this struct.
    Some(unsafe { &*publisher.cast::<GpuPublisher>() })
}

// SAFETY: as for `of`.
unsafe fn inner_of(publisher: *const rmw_publisher_t) -> *const rmw_publisher_t {
    // SAFETY: as for `of`.
    let own = unsafe { of(publisher) };
    own.map_or(publisher, |own| own.inner.cast_const())
}

impl GpuPublisher {
    /// Refuses a descriptor whose message this host's core does not know on this topic; learns the publisher's identity.
    fn check(&self, handle: &MessageHandle) -> Result<(), rmw_ret_t> {
        if !self.context.node.is_owner() {
            return Err(support::forked(&self.topic));
        }
        self.check_handle(handle)?;
        if self.identity.swap(handle.publisher, Ordering::Relaxed) != handle.publisher {
            own::learn(std::ptr::from_ref(self) as usize, handle.publisher);
        }
        Ok(())
    }

    fn check_handle(&self, handle: &MessageHandle) -> Result<(), rmw_ret_t> {
        let topic = &self.topic;
        let name = support::type_name(self.kind);
        let refused = |why: std::fmt::Arguments<'_>| {
            let next = "publish in the core, and send the descriptor that it returns";
            Err(refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{topic}: {why}; {next}")))
        };
        if let Err(why) = check_handle(self.kind, handle) {
            return refused(format_args!("{why}"));
        }
        let invalid = |why: std::fmt::Arguments<'_>| refused(format_args!("a {name} {why}"));
        let node = &self.context.node;
        if handle.source_host == node.host() && handle.host_epoch != node.host_epoch() {
            let (found, now) = (handle.host_epoch, node.host_epoch());
            return invalid(format_args!(
                "is of an earlier run: its host started at {found} ns, but the current run started at {now} ns"
            ));
        }
        let is_local = handle.source_host == node.host();
        let look = || self.observed.look(|observer| known(observer, handle, is_local));
        let mut found = look();
        if matches!(found, Ok(Known::OtherSegment)) {
            // The topic may have a new segment, to which the handle belongs.
            self.observed.forget();
            found = look();
        }
        match found {
            Ok(Known::Here) => Ok(()),
            Ok(Known::Nowhere | Known::OtherSegment) => {
                let (sequence, publisher) = (handle.sequence, handle.publisher);
                let what = "which is no message of this topic that this host has";
                invalid(format_args!("names message {sequence} of publisher {publisher:#x}, {what}"))
            }
            Err(error) => {
                let why = format_args!("{}: the descriptor cannot be checked: {error}", self.topic);
                Err(refuse(RMW_RET_ERROR, why))
            }
        }
    }
}

/// What a segment says about a message.
enum Known {
    /// It has or had the message: all may have released it since.
    Here,
    Nowhere,
    /// The handle was written for another segment.
    OtherSegment,
}

fn known(observer: &Observer, handle: &MessageHandle, is_local: bool) -> Known {
    if observer.topic() != handle.topic_id {
        return Known::OtherSegment;
    }
    let name = |of: &MessageInfo| (of.source_host, of.host_epoch, of.publisher, of.sequence);
    let wanted = (handle.source_host, handle.host_epoch, handle.publisher, handle.sequence);
    let is_there = observer.message(handle.entry, handle.generation).is_some_and(|info| name(&info) == wanted);
    let was_there = || {
        let publisher = observer.publisher(handle.publisher).filter(|publisher| is_local && !publisher.remote);
        publisher.is_some_and(|publisher| handle.sequence <= publisher.published)
    };
    if is_there || was_there() { Known::Here } else { Known::Nowhere }
}

// SAFETY: what rmw asks of its callers, here and in all functions of its names below.
pub(crate) unsafe fn rmw_create_publisher(
    node: *const rmw_node_t,
    type_support: *const rosidl_message_type_support_t,
    topic: *const c_char,
    qos: *const rmw_qos_profile_t,
    options: *const rmw_publisher_options_t,
) -> *mut rmw_publisher_t {
    // SAFETY: the caller's own arguments.
    let inner = unsafe { calls::rmw_create_publisher(node, type_support, topic, qos, options) };
    if inner.is_null() {
        return inner; // With the inner RMW's error.
    }
    // SAFETY: null or a type support.
    let Some(kind) = (unsafe { support::kind_of(type_support) }) else { return inner };
    // SAFETY: the inner RMW has accepted the name.
    let topic = unsafe { support::text(topic) }.unwrap_or_default().to_string_lossy().into_owned();
    // SAFETY: the inner RMW has accepted the node.
    let context = match unsafe { Context::of(node) } {
        Ok(context) => context,
        Err(why) => {
            // SAFETY: made above on this node.
            let _ = unsafe { calls::rmw_destroy_publisher(node.cast_mut(), inner) };
            return fail(format_args!("{topic} ({}): {why}", support::type_name(kind)));
        }
    };
    // SAFETY: a handle of the inner RMW's.
    let mut handle = unsafe { *inner };
    handle.implementation_identifier = IDENTIFIER.as_ptr().cast();
    handle.can_loan_messages = true;
    let observed = Observed::new(context.node.clone(), topic.clone());
    let place = Origin { context: context.address(), topic: topic.clone() };
    let (loans, identity) = (Loans::default(), AtomicU64::new(0));
    let own = GpuPublisher { handle, inner, kind, topic, type_support, observed, loans, identity, context };
    let own: *mut rmw_publisher_t = Box::into_raw(Box::new(own)).cast();
    // SAFETY: bytes and a pointer, for which zeros are values.
    let mut gid: rmw_gid_t = unsafe { std::mem::zeroed() };
    // SAFETY: made above.
    if unsafe { calls::rmw_get_gid_for_publisher(inner, &raw mut gid) } == RMW_RET_OK {
        own::add(own as usize, place, gid);
    } else {
        crate::rcutils::reset_error();
    }
    own
}

pub(crate) unsafe fn rmw_destroy_publisher(node: *mut rmw_node_t, publisher: *mut rmw_publisher_t) -> rmw_ret_t {
    // SAFETY: null or a publisher.
    let Some(own) = (unsafe { of(publisher) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_destroy_publisher(node, publisher) };
    };
    // SAFETY: a publisher of the inner RMW's.
    let maker = unsafe { (*own.inner).implementation_identifier };
    // SAFETY: null or a node.
    if let Err(refused) = unsafe { support::check_node(node, maker, &own.topic) } {
        return refused;
    }
    if !own.context.node.is_owner() {
        // A forked child: what the layer has is the parent's.
        // SAFETY: made on this node, and destroyed once.
        return unsafe { calls::rmw_destroy_publisher(node, own.inner) };
    }
    own::remove(publisher as usize);
    // SAFETY: handed out by `rmw_create_publisher`, and destroyed once.
    let own = unsafe { Box::from_raw(publisher.cast::<GpuPublisher>()) };
    // SAFETY: made on this node, and destroyed once.
    unsafe { calls::rmw_destroy_publisher(node, own.inner) }
}

pub(crate) unsafe fn rmw_publish(
    publisher: *const rmw_publisher_t,
    message: *const c_void,
    allocation: *mut rmw_publisher_allocation_t,
) -> rmw_ret_t {
    // SAFETY: null or a publisher.
    let Some(own) = (unsafe { of(publisher) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_publish(publisher, message, allocation) };
    };
    if message.is_null() {
        return refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{}: the message is null", own.topic));
    }
    // SAFETY: a message of the publisher's type.
    let handle = unsafe { descriptor::handle_of(message) };
    match own.check(&handle) {
        // SAFETY: the caller's own arguments, with the handle that the inner RMW knows.
        Ok(()) => unsafe { calls::rmw_publish(own.inner, message, allocation) },
        Err(refused) => refused,
    }
}

pub(crate) unsafe fn rmw_publish_serialized_message(
    publisher: *const rmw_publisher_t,
    message: *const rmw_serialized_message_t,
    allocation: *mut rmw_publisher_allocation_t,
) -> rmw_ret_t {
    // SAFETY: null or a publisher.
    let Some(own) = (unsafe { of(publisher) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_publish_serialized_message(publisher, message, allocation) };
    };
    if message.is_null() {
        return refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{}: the message is null", own.topic));
    }
    let mut descriptor = Descriptor::zeroed();
    // SAFETY: the caller's message, and memory for any message of the type.
    let result = unsafe { calls::rmw_deserialize(message, own.type_support, descriptor.as_mut_ptr()) };
    if result != RMW_RET_OK {
        return result;
    }
    match own.check(&descriptor.handle()) {
        // SAFETY: the caller's own arguments, with the handle that the inner RMW knows.
        Ok(()) => unsafe { calls::rmw_publish_serialized_message(own.inner, message, allocation) },
        Err(refused) => refused,
    }
}

pub(crate) unsafe fn rmw_borrow_loaned_message(
    publisher: *const rmw_publisher_t,
    type_support: *const rosidl_message_type_support_t,
    message: *mut *mut c_void,
) -> rmw_ret_t {
    // SAFETY: null or a publisher.
    let Some(own) = (unsafe { of(publisher) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_borrow_loaned_message(publisher, type_support, message) };
    };
    // SAFETY: null or a place for a pointer.
    let Some(message) = (unsafe { message.as_mut() }).filter(|message| message.is_null()) else {
        let why = "the pointer for the loan is null, or holds a message already";
        return refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{}: {why}", own.topic));
    };
    // SAFETY: null or a type support.
    if unsafe { support::kind_of(type_support) } != Some(own.kind) {
        let name = support::type_name(own.kind);
        return refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{}: the loan must be a {name}", own.topic));
    }
    let Some(lent) = own.loans.lend(Descriptor::empty(own.kind)) else { return own.loans.refuse(&own.topic) };
    *message = lent;
    RMW_RET_OK
}

pub(crate) unsafe fn rmw_return_loaned_message_from_publisher(
    publisher: *const rmw_publisher_t,
    message: *mut c_void,
) -> rmw_ret_t {
    // SAFETY: null or a publisher.
    let Some(own) = (unsafe { of(publisher) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_return_loaned_message_from_publisher(publisher, message) };
    };
    if own.loans.take_back(message) { RMW_RET_OK } else { no_loan(own) }
}

pub(crate) unsafe fn rmw_publish_loaned_message(
    publisher: *const rmw_publisher_t,
    message: *mut c_void,
    allocation: *mut rmw_publisher_allocation_t,
) -> rmw_ret_t {
    // SAFETY: null or a publisher.
    let Some(own) = (unsafe { of(publisher) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_publish_loaned_message(publisher, message, allocation) };
    };
    if !own.loans.has(message) {
        return no_loan(own);
    }
    // SAFETY: a loan of this publisher's is a message of its type.
    let result = unsafe { rmw_publish(publisher, message, allocation) };
    // After RMW_RET_INVALID_ARGUMENT the caller keeps the loan; after any other result it is taken back (rmw.h).
    if result != RMW_RET_INVALID_ARGUMENT {
        own.loans.take_back(message);
    }
    result
}

fn no_loan(own: &GpuPublisher) -> rmw_ret_t {
    refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{}: the message is no loan of this publisher", own.topic))
}

pub(crate) unsafe fn rmw_publisher_event_init(
    event: *mut rmw_event_t,
    publisher: *const rmw_publisher_t,
    event_type: rmw_event_type_t,
) -> rmw_ret_t {
    // SAFETY: null or a publisher.
    let inner = unsafe { inner_of(publisher) };
    // SAFETY: the caller's own arguments, with the handle that the inner RMW knows.
    unsafe { calls::rmw_publisher_event_init(event, inner, event_type) }
}

macro_rules! inner_ones {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        pub(crate) unsafe fn $name(publisher: *const rmw_publisher_t, $($arg: $type),*) -> rmw_ret_t {
            // SAFETY: null or a publisher.
            let inner = unsafe { inner_of(publisher) };
            // SAFETY: the caller's own arguments, with the handle that the inner RMW knows.
            unsafe { calls::$name(inner, $($arg),*) }
        }
    )*};
}
inner_ones! {
    rmw_publisher_count_matched_subscriptions(count: *mut usize);
    rmw_publisher_get_actual_qos(qos: *mut rmw_qos_profile_t);
    rmw_publisher_assert_liveliness();
    rmw_publisher_wait_for_all_acked(timeout: rmw_time_t);
    rmw_get_gid_for_publisher(gid: *mut rmw_gid_t);
    rmw_publisher_get_network_flow_endpoints(allocator: *mut rcutils_allocator_t, endpoints: *mut rmw_network_flow_endpoint_array_t);
}
