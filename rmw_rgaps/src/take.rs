//! Taking from GPU subscriptions: the next message of the core's queue, as its descriptor. The layer releases the core's message at once: a program
//! that wants the payload takes it by the descriptor's handle, through its own core subscriber.

use std::ffi::c_void;
use std::sync::MutexGuard;

use rgaps::dynamic::DynamicMeta;
use rgaps::{Described, MessageInfo, TakeError};

use crate::descriptor::{self, Descriptor};
use crate::entity::Entity;
use crate::ffi::refuse;
use crate::inner::calls;
use crate::lock::lock;
use crate::own;
use crate::rcutils::{self, Severity};
use crate::subscription::of;
use crate::support;
use crate::sys::*;
use crate::taking::Known;

/// Most consecutive messages that one call skips because they cannot be taken.
const FAILURES_MAX: usize = 64;

/// A taken message.
struct Taken {
    descriptor: Descriptor,
    info: rmw_message_info_t,
}

/// Keeps the takes of other threads out: the messages of one sequence must be consecutive (rmw.h).
fn turn(entity: &Entity) -> Result<MutexGuard<'_, ()>, rmw_ret_t> {
    if !entity.is_owner() {
        // A thread of the parent may have held it at the fork, for ever.
        return Err(support::forked(&entity.topic));
    }
    entity.note_take();
    Ok(lock(&entity.turn))
}

fn next(entity: &Entity) -> Result<Option<Taken>, rmw_ret_t> {
    next_in_turn(entity, &turn(entity)?)
}

/// The next message, if there is one. Messages that cannot be read are released and logged.
fn next_in_turn(entity: &Entity, _turn: &MutexGuard<'_, ()>) -> Result<Option<Taken>, rmw_ret_t> {
    for _ in 0..FAILURES_MAX {
        let found = {
            // Update the count of reported messages in the same lock, so that no callback is told of this message again.
            let mut taking = lock(&entity.taking);
            let found = entity.core.take_described();
            taking.note_take(!matches!(found, Ok(None)));
            found
        };
        match found {
            Ok(Some(message)) => {
                let known = known(entity, &message.info);
                if entity.ignores_local && known.is_own {
                    continue;
                }
                let received = lock(&entity.taking).receive();
                let gid = known.is_own.then(|| own::gid_of(&entity.place, known.publisher)).flatten();
                return Ok(Some(taken(&message, received, gid)));
            }
            Ok(None) => return Ok(None),
            // Not an error of the take: rclpy's executor would end with it.
            Err(error @ TakeError::CutOff { .. }) => {
                if entity.note_end_told() {
                    rcutils::log(Severity::Error, format_args!("{error}"));
                }
                return Ok(None);
            }
            Err(error) => rcutils::log(Severity::Error, format_args!("{error}")),
        }
    }
    Ok(None)
}

/// Details of a message's publisher. The manager may have to be asked whether it is of this process. That happens with no lock held, but with the
/// message held, so that its publisher's slot exists even if the publisher has left.
fn known(entity: &Entity, info: &MessageInfo) -> Known {
    let known = lock(&entity.taking).find(info);
    known.unwrap_or_else(|| {
        let is_own = is_own(entity, info);
        // If nobody answers, delivering twice is better than losing a message, and the next one asks again.
        let known = Known::of(info, is_own == Some(true));
        if is_own.is_some() {
            lock(&entity.taking).remember(known);
        }
        known
    })
}

fn taken(message: &Described<DynamicMeta>, received: u64, own: Option<rmw_gid_t>) -> Taken {
    let descriptor = Descriptor::of(message);
    // SAFETY: numbers and a pointer, for which zeros are values.
    let mut info: rmw_message_info_t = unsafe { std::mem::zeroed() };
    info.source_timestamp = message.info.stamps.published as i64;
    info.received_timestamp = message.taken_ns as i64;
    info.publication_sequence_number = message.info.sequence;
    info.reception_sequence_number = received;
    match own {
        Some(gid) => info.publisher_gid = gid,
        None => {
            // rmw_compare_gids_equal is the inner RMW's, and accepts only its own identifier.
            // SAFETY: no arguments.
            info.publisher_gid.implementation_identifier = unsafe { calls::rmw_get_implementation_identifier() };
            descriptor::gid(&message.info, &mut info.publisher_gid.data);
        }
    }
    Taken { descriptor, info }
}

/// Whether the publisher is in this process. Process ids in the segment are those of each publisher's own namespace; another container may have the
/// same. `None` if the manager does not answer.
fn is_own(entity: &Entity, info: &MessageInfo) -> Option<bool> {
    let may_be = entity.ignores_local || own::are_there(&entity.place);
    if may_be && entity.rests_from_asking() {
        return None;
    }
    let publisher = may_be.then(|| entity.observed.look(|observer| observer.publisher(info.publisher)));
    match publisher {
        Some(Ok(Some(publisher))) => Some(!publisher.remote && publisher.pid == u64::from(std::process::id())),
        // The publisher has left.
        Some(Ok(None)) | None => Some(false),
        Some(Err(_)) => {
            entity.note_unanswered();
            None
        }
    }
}

// SAFETY: each null, or the caller's memory for it.
unsafe fn finish(taken: Option<&Taken>, was_taken: *mut bool, info: *mut rmw_message_info_t) {
    if let (Some(taken), false) = (taken, info.is_null()) {
        // SAFETY: as the caller says.
        unsafe { info.write(taken.info) };
    }
    // SAFETY: as the caller says; checked before.
    unsafe { was_taken.write(taken.is_some()) };
}

fn no_place(entity: &Entity) -> rmw_ret_t {
    refuse(
        RMW_RET_INVALID_ARGUMENT,
        format_args!("{}: a pointer for the message, its info or its count is null", entity.topic),
    )
}

// SAFETY: as for rmw_take_with_info; `info` may be null.
unsafe fn take(
    entity: &Entity,
    message: *mut c_void,
    was_taken: *mut bool,
    info: *mut rmw_message_info_t,
) -> rmw_ret_t {
    if message.is_null() || was_taken.is_null() {
        return no_place(entity);
    }
    let taken = match next(entity) {
        Ok(taken) => taken,
        Err(refused) => return refused,
    };
    if let Some(taken) = &taken {
        // SAFETY: a message of the subscription's type.
        unsafe { taken.descriptor.copy_to(entity.kind, message) };
    }
    // SAFETY: the caller's memory.
    unsafe { finish(taken.as_ref(), was_taken, info) };
    RMW_RET_OK
}

// SAFETY: as for rmw_take_serialized_message_with_info; `info` may be null.
unsafe fn take_serialized(
    entity: &Entity,
    message: *mut rmw_serialized_message_t,
    was_taken: *mut bool,
    info: *mut rmw_message_info_t,
) -> rmw_ret_t {
    if message.is_null() || was_taken.is_null() {
        return no_place(entity);
    }
    let taken = match next(entity) {
        Ok(taken) => taken,
        Err(refused) => return refused,
    };
    if let Some(taken) = &taken {
        // SAFETY: a message of the type, and the caller's serialized message.
        let result = unsafe { calls::rmw_serialize(taken.descriptor.as_ptr(), entity.type_support.0, message) };
        if result != RMW_RET_OK {
            return result;
        }
    }
    // SAFETY: the caller's memory.
    unsafe { finish(taken.as_ref(), was_taken, info) };
    RMW_RET_OK
}

// SAFETY: as for rmw_take_loaned_message_with_info; `info` may be null.
unsafe fn take_loaned(
    entity: &Entity,
    message: *mut *mut c_void,
    was_taken: *mut bool,
    info: *mut rmw_message_info_t,
) -> rmw_ret_t {
    if message.is_null() || was_taken.is_null() {
        return no_place(entity);
    }
    if entity.loans.is_full() {
        return entity.loans.refuse(&entity.topic);
    }
    let taken = match next(entity) {
        Ok(taken) => taken,
        Err(refused) => return refused,
    };
    if let Some(taken) = &taken {
        // Another thread may have taken the last free loan since the check. Then this message is lost to the caller, who gets an error.
        let Some(lent) = entity.loans.lend(taken.descriptor.clone()) else { return entity.loans.refuse(&entity.topic) };
        // SAFETY: the caller's place for a pointer.
        unsafe { message.write(lent) };
    }
    // SAFETY: the caller's memory.
    unsafe { finish(taken.as_ref(), was_taken, info) };
    RMW_RET_OK
}

// SAFETY: what rmw asks of its callers, here and in all functions of its names below.
pub(crate) unsafe fn rmw_take_sequence(
    subscription: *const rmw_subscription_t,
    count: usize,
    messages: *mut rmw_message_sequence_t,
    infos: *mut rmw_message_info_sequence_t,
    taken: *mut usize,
    allocation: *mut rmw_subscription_allocation_t,
) -> rmw_ret_t {
    // SAFETY: null or a subscription.
    let Some(entity) = (unsafe { of(subscription) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_take_sequence(subscription, count, messages, infos, taken, allocation) };
    };
    // SAFETY: null, or the caller's sequence.
    let messages = unsafe { messages.as_mut() };
    // SAFETY: as above.
    let infos = unsafe { infos.as_mut() };
    let (Some(messages), Some(infos), false) = (messages, infos, taken.is_null()) else { return no_place(entity) };
    if count == 0 || messages.capacity < count || infos.capacity < count {
        let (messages, infos) = (messages.capacity, infos.capacity);
        let why = format_args!(
            "{}: {count} messages do not fit: there is room for {messages} messages and {infos} infos",
            entity.topic
        );
        return refuse(RMW_RET_INVALID_ARGUMENT, why);
    }
    let turn = match turn(entity) {
        Ok(turn) => turn,
        Err(refused) => return refused,
    };
    let mut done = 0;
    while done < count {
        let taken = match next_in_turn(entity, &turn) {
            Ok(Some(taken)) => taken,
            Ok(None) => break,
            Err(refused) => return refused,
        };
        // SAFETY: the sequence has `capacity` pointers to messages of the type, more than `done`.
        let place = unsafe { messages.data.add(done) };
        // SAFETY: as above.
        let message = unsafe { place.read() };
        // SAFETY: a message of the subscription's type.
        unsafe { taken.descriptor.copy_to(entity.kind, message) };
        // SAFETY: the sequence has `capacity` infos, more than `done`.
        let info = unsafe { infos.data.add(done) };
        // SAFETY: the caller's memory.
        unsafe { info.write(taken.info) };
        done += 1;
    }
    if done > 0 {
        messages.size = done;
        infos.size = done;
    }
    // SAFETY: not null, and the caller's.
    unsafe { taken.write(done) };
    RMW_RET_OK
}

pub(crate) unsafe fn rmw_return_loaned_message_from_subscription(
    subscription: *const rmw_subscription_t,
    message: *mut c_void,
) -> rmw_ret_t {
    // SAFETY: null or a subscription.
    let Some(entity) = (unsafe { of(subscription) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_return_loaned_message_from_subscription(subscription, message) };
    };
    if entity.loans.take_back(message) {
        return RMW_RET_OK;
    }
    refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{}: the message is no loan of this subscription", entity.topic))
}

/// Defines a take without info and one with info.
macro_rules! takes {
    ($($own:ident: $name:ident($message:ty), $with_info:ident;)*) => {$(
        pub(crate) unsafe fn $name(
            subscription: *const rmw_subscription_t,
            message: $message,
            taken: *mut bool,
            allocation: *mut rmw_subscription_allocation_t,
        ) -> rmw_ret_t {
            // SAFETY: null or a subscription.
            match unsafe { of(subscription) } {
                // SAFETY: the caller's own arguments.
                None => unsafe { calls::$name(subscription, message, taken, allocation) },
                // SAFETY: as above.
                Some(entity) => unsafe { $own(entity, message, taken, std::ptr::null_mut()) },
            }
        }

        pub(crate) unsafe fn $with_info(
            subscription: *const rmw_subscription_t,
            message: $message,
            taken: *mut bool,
            info: *mut rmw_message_info_t,
            allocation: *mut rmw_subscription_allocation_t,
        ) -> rmw_ret_t {
            // SAFETY: null or a subscription.
            match unsafe { of(subscription) } {
                // SAFETY: the caller's own arguments.
                None => unsafe { calls::$with_info(subscription, message, taken, info, allocation) },
                Some(entity) if info.is_null() => no_place(entity),
                // SAFETY: as above.
                Some(entity) => unsafe { $own(entity, message, taken, info) },
            }
        }
    )*};
}
takes! {
    take: rmw_take(*mut c_void), rmw_take_with_info;
    take_serialized: rmw_take_serialized_message(*mut rmw_serialized_message_t), rmw_take_serialized_message_with_info;
    take_loaned: rmw_take_loaned_message(*mut *mut c_void), rmw_take_loaned_message_with_info;
}

/// Takes as dynamic data: not supported on GPU topics, whose descriptors are plain structs.
#[cfg(rmw_dynamic)]
mod dynamic {
    use super::*;

    fn unsupported(entity: &Entity) -> rmw_ret_t {
        let next = "take it as its type, or serialized";
        refuse(RMW_RET_UNSUPPORTED, format_args!("{}: a GPU topic's message is no dynamic data; {next}", entity.topic))
    }

    pub(crate) unsafe fn rmw_take_dynamic_message(
        subscription: *const rmw_subscription_t,
        message: *mut rosidl_dynamic_typesupport_dynamic_data_t,
        taken: *mut bool,
        allocation: *mut rmw_subscription_allocation_t,
    ) -> rmw_ret_t {
        // SAFETY: null or a subscription.
        match unsafe { of(subscription) } {
            // SAFETY: the caller's own arguments.
            None => unsafe { calls::rmw_take_dynamic_message(subscription, message, taken, allocation) },
            Some(entity) => unsupported(entity),
        }
    }

    pub(crate) unsafe fn rmw_take_dynamic_message_with_info(
        subscription: *const rmw_subscription_t,
        message: *mut rosidl_dynamic_typesupport_dynamic_data_t,
        taken: *mut bool,
        info: *mut rmw_message_info_t,
        allocation: *mut rmw_subscription_allocation_t,
    ) -> rmw_ret_t {
        // SAFETY: null or a subscription.
        match unsafe { of(subscription) } {
            // SAFETY: the caller's own arguments.
            None => unsafe {
                calls::rmw_take_dynamic_message_with_info(subscription, message, taken, info, allocation)
            },
            Some(entity) => unsupported(entity),
        }
    }
}
#[cfg(rmw_dynamic)]
pub(crate) use dynamic::{rmw_take_dynamic_message, rmw_take_dynamic_message_with_info};
