/* The forwarding inner RMW: a small RMW within one process. Like real ones, it compares its handles' identifiers by address. The test generates
 * the other functions from functions.def; those check the identifiers of their handles. */
#include "headers.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE_MAX 256
#define SUBSCRIPTIONS_MAX 64
#define WRONG_RMW 12

static const char identifier[] = "rmw_forwarding";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* Number of handles received that are not this RMW's. */
static unsigned strangers;

struct message
{
  size_t bytes;
  unsigned char data[2048];
};

struct subscription
{
  char topic[128];
  size_t bytes;
  rmw_qos_profile_t qos;
  struct message queue[QUEUE_MAX];
  size_t first, count;
  rmw_event_callback_t callback;
  const void *user_data;
  unsigned callbacks_running;
};

struct publisher
{
  char topic[128];
  size_t bytes;
  rmw_qos_profile_t qos;
};

static struct subscription *subscriptions[SUBSCRIPTIONS_MAX];

unsigned double_strangers(void)
{
  return strangers;
}

static bool is_ours(const void *handle)
{
  const char *own = handle ? *(const char *const *)handle : NULL;
  if (own == identifier) {
    return true;
  }
  __atomic_add_fetch(&strangers, 1, __ATOMIC_SEQ_CST);
  return false;
}

/* As in a package with a single type support: the C structs of introspection, as far as they are read. */
struct members
{
  const char *namespace;
  const char *name;
  uint32_t count;
  size_t size_of;
};

static const rosidl_message_type_support_t *same(const rosidl_message_type_support_t *handle, const char *wanted)
{
  return strcmp(handle->typesupport_identifier, wanted) == 0 ? handle : NULL;
}

const rosidl_message_type_support_t *double_type(const char *namespace, const char *name, size_t bytes)
{
  struct members *members = calloc(1, sizeof *members);
  *members = (struct members){strdup(namespace), strdup(name), 0, bytes};
  rosidl_message_type_support_t *support = calloc(1, sizeof *support);
  support->typesupport_identifier = "rosidl_typesupport_introspection_c";
  support->data = members;
  support->func = same;
  return support;
}

static size_t bytes_of(const rosidl_message_type_support_t *support)
{
  return ((const struct members *)support->data)->size_of;
}

rmw_context_t *double_context(size_t domain)
{
  rmw_context_t *context = calloc(1, sizeof *context);
  context->implementation_identifier = identifier;
  context->actual_domain_id = domain;
  return context;
}

rmw_qos_profile_t *double_qos(size_t depth, bool keep_all, bool transient_local)
{
  rmw_qos_profile_t *qos = calloc(1, sizeof *qos);
  qos->depth = depth;
  qos->history = keep_all ? RMW_QOS_POLICY_HISTORY_KEEP_ALL : RMW_QOS_POLICY_HISTORY_KEEP_LAST;
  qos->durability = transient_local ? RMW_QOS_POLICY_DURABILITY_TRANSIENT_LOCAL : RMW_QOS_POLICY_DURABILITY_VOLATILE;
  qos->reliability = RMW_QOS_POLICY_RELIABILITY_RELIABLE;
  return qos;
}

rmw_subscription_options_t *double_options(bool ignore_local)
{
  rmw_subscription_options_t *options = calloc(1, sizeof *options);
  options->ignore_local_publications = ignore_local;
  return options;
}

rmw_serialized_message_t *double_serialized(void)
{
  return calloc(1, sizeof(rmw_serialized_message_t));
}

/* Sequences of `capacity` messages and infos. */
rmw_message_sequence_t *double_messages(size_t capacity)
{
  rmw_message_sequence_t *sequence = calloc(1, sizeof *sequence);
  sequence->data = calloc(capacity, sizeof(void *));
  for (size_t place = 0; place < capacity; place++) {
    sequence->data[place] = calloc(1, 2048);
  }
  sequence->capacity = capacity;
  return sequence;
}

rmw_message_info_sequence_t *double_infos(size_t capacity)
{
  rmw_message_info_sequence_t *sequence = calloc(1, sizeof *sequence);
  sequence->data = calloc(capacity, sizeof(rmw_message_info_t));
  sequence->capacity = capacity;
  return sequence;
}

const char *rmw_get_implementation_identifier(void)
{
  return identifier;
}

const char *rmw_get_serialization_format(void)
{
  return "bytes";
}

rmw_node_t *rmw_create_node(rmw_context_t *context, const char *name, const char *namespace)
{
  rmw_node_t *node = calloc(1, sizeof *node);
  node->implementation_identifier = identifier;
  node->name = name;
  node->namespace_ = namespace;
  node->context = context;
  return node;
}

rmw_ret_t rmw_destroy_node(rmw_node_t *node)
{
  free(node);
  return RMW_RET_OK;
}

rmw_publisher_t *rmw_create_publisher(
  const rmw_node_t *node, const rosidl_message_type_support_t *support, const char *topic, const rmw_qos_profile_t *qos,
  const rmw_publisher_options_t *options)
{
  if (!is_ours(node)) {
    return NULL;
  }
  struct publisher *own = calloc(1, sizeof *own);
  snprintf(own->topic, sizeof own->topic, "%s", topic);
  own->bytes = bytes_of(support);
  own->qos = *qos;
  rmw_publisher_t *publisher = calloc(1, sizeof *publisher);
  publisher->implementation_identifier = identifier;
  publisher->data = own;
  publisher->topic_name = own->topic;
  if (options) {
    publisher->options = *options;
  }
  return publisher;
}

rmw_ret_t rmw_destroy_publisher(rmw_node_t *node, rmw_publisher_t *publisher)
{
  if (!is_ours(node) || !is_ours(publisher)) {
    return WRONG_RMW;
  }
  free(publisher->data);
  free(publisher);
  return RMW_RET_OK;
}

rmw_subscription_t *rmw_create_subscription(
  const rmw_node_t *node, const rosidl_message_type_support_t *support, const char *topic, const rmw_qos_profile_t *qos,
  const rmw_subscription_options_t *options)
{
  if (!is_ours(node)) {
    return NULL;
  }
  struct subscription *own = calloc(1, sizeof *own);
  snprintf(own->topic, sizeof own->topic, "%s", topic);
  own->bytes = bytes_of(support);
  own->qos = *qos;
  rmw_subscription_t *subscription = calloc(1, sizeof *subscription);
  subscription->implementation_identifier = identifier;
  subscription->data = own;
  subscription->topic_name = own->topic;
  subscription->options = *options;
  pthread_mutex_lock(&lock);
  for (size_t place = 0; place < SUBSCRIPTIONS_MAX; place++) {
    if (!subscriptions[place]) {
      subscriptions[place] = own;
      break;
    }
  }
  pthread_mutex_unlock(&lock);
  return subscription;
}

rmw_ret_t rmw_destroy_subscription(rmw_node_t *node, rmw_subscription_t *subscription)
{
  if (!is_ours(node) || !is_ours(subscription)) {
    return WRONG_RMW;
  }
  pthread_mutex_lock(&lock);
  for (size_t place = 0; place < SUBSCRIPTIONS_MAX; place++) {
    if (subscriptions[place] == subscription->data) {
      subscriptions[place] = NULL;
    }
  }
  pthread_mutex_unlock(&lock);
  free(subscription->data);
  free(subscription);
  return RMW_RET_OK;
}

static void deliver(const char *topic, const void *data, size_t bytes)
{
  pthread_mutex_lock(&lock);
  for (size_t place = 0; place < SUBSCRIPTIONS_MAX; place++) {
    struct subscription *to = subscriptions[place];
    if (!to || strcmp(to->topic, topic) != 0) {
      continue;
    }
    if (to->count == QUEUE_MAX) {
      to->first++;
      to->count--;
    }
    struct message *message = &to->queue[(to->first + to->count++) % QUEUE_MAX];
    message->bytes = bytes;
    memcpy(message->data, data, bytes);
    if (to->callback) {
      rmw_event_callback_t callback = to->callback;
      const void *user_data = to->user_data;
      to->callbacks_running++;
      pthread_mutex_unlock(&lock);
      callback(user_data, 1);
      pthread_mutex_lock(&lock);
      to->callbacks_running--;
    }
  }
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

/* Delivers a message as if it came from another host: not through a publisher here. */
void double_deliver(const char *topic, const void *data, size_t bytes)
{
  deliver(topic, data, bytes);
}

rmw_ret_t rmw_publish(const rmw_publisher_t *publisher, const void *data, rmw_publisher_allocation_t *allocation)
{
  (void)allocation;
  if (!is_ours(publisher)) {
    return WRONG_RMW;
  }
  const struct publisher *own = publisher->data;
  deliver(own->topic, data, own->bytes);
  return RMW_RET_OK;
}

rmw_ret_t rmw_publish_serialized_message(
  const rmw_publisher_t *publisher, const rmw_serialized_message_t *message, rmw_publisher_allocation_t *allocation)
{
  return message ? rmw_publish(publisher, message->buffer, allocation) : RMW_RET_INVALID_ARGUMENT;
}

static rmw_ret_t take(const rmw_subscription_t *subscription, void *data, bool *taken)
{
  if (!is_ours(subscription)) {
    return WRONG_RMW;
  }
  if (!data || !taken) {
    return RMW_RET_INVALID_ARGUMENT;
  }
  struct subscription *own = subscription->data;
  pthread_mutex_lock(&lock);
  *taken = own->count > 0;
  if (*taken) {
    struct message *message = &own->queue[own->first % QUEUE_MAX];
    memcpy(data, message->data, message->bytes);
    own->first++;
    own->count--;
  }
  pthread_mutex_unlock(&lock);
  return RMW_RET_OK;
}

rmw_ret_t rmw_take(const rmw_subscription_t *subscription, void *data, bool *taken, rmw_subscription_allocation_t *allocation)
{
  (void)allocation;
  return take(subscription, data, taken);
}

/* Number of messages in the inner queue of a topic's first subscription. */
size_t double_queued(const char *topic)
{
  size_t count = 0;
  pthread_mutex_lock(&lock);
  for (size_t place = 0; place < SUBSCRIPTIONS_MAX; place++) {
    if (subscriptions[place] && strcmp(subscriptions[place]->topic, topic) == 0) {
      count += subscriptions[place]->count;
    }
  }
  pthread_mutex_unlock(&lock);
  return count;
}

#ifndef DEAF
rmw_ret_t rmw_subscription_set_on_new_message_callback(
  rmw_subscription_t *subscription, rmw_event_callback_t callback, const void *user_data)
{
  if (!is_ours(subscription)) {
    return WRONG_RMW;
  }
  struct subscription *own = subscription->data;
  pthread_mutex_lock(&lock);
  own->callback = callback;
  own->user_data = user_data;
  while (!callback && own->callbacks_running > 0) {
    pthread_mutex_unlock(&lock);
    sched_yield();
    pthread_mutex_lock(&lock);
  }
  pthread_mutex_unlock(&lock);
  return RMW_RET_OK;
}
#endif

rmw_ret_t rmw_subscription_get_actual_qos(const rmw_subscription_t *subscription, rmw_qos_profile_t *qos)
{
  if (!is_ours(subscription)) {
    return WRONG_RMW;
  }
  if (!qos) {
    return RMW_RET_INVALID_ARGUMENT;
  }
  *qos = ((struct subscription *)subscription->data)->qos;
  return RMW_RET_OK;
}

rmw_ret_t rmw_serialize(const void *data, const rosidl_message_type_support_t *support, rmw_serialized_message_t *message)
{
  if (!data || !support || !message) {
    return RMW_RET_INVALID_ARGUMENT;
  }
  message->buffer = realloc(message->buffer, bytes_of(support));
  message->buffer_length = message->buffer_capacity = bytes_of(support);
  memcpy(message->buffer, data, message->buffer_length);
  return RMW_RET_OK;
}

rmw_ret_t rmw_deserialize(const rmw_serialized_message_t *message, const rosidl_message_type_support_t *support, void *data)
{
  if (!data || !support || !message || message->buffer_length != bytes_of(support)) {
    return RMW_RET_INVALID_ARGUMENT;
  }
  memcpy(data, message->buffer, message->buffer_length);
  return RMW_RET_OK;
}

rmw_ret_t rmw_subscription_event_init(rmw_event_t *event, const rmw_subscription_t *subscription, rmw_event_type_t type)
{
  if (!is_ours(subscription)) {
    return WRONG_RMW;
  }
  if (!event) {
    return RMW_RET_INVALID_ARGUMENT;
  }
  *event = (rmw_event_t){.implementation_identifier = identifier, .data = subscription->data, .event_type = type};
  return RMW_RET_OK;
}

rmw_guard_condition_t *rmw_create_guard_condition(rmw_context_t *context)
{
  rmw_guard_condition_t *guard = calloc(1, sizeof *guard);
  guard->implementation_identifier = identifier;
  guard->data = calloc(1, sizeof(bool));
  guard->context = context;
  return guard;
}

rmw_ret_t rmw_destroy_guard_condition(rmw_guard_condition_t *guard)
{
  if (!is_ours(guard)) {
    return WRONG_RMW;
  }
  free(guard->data);
  free(guard);
  return RMW_RET_OK;
}

rmw_ret_t rmw_trigger_guard_condition(const rmw_guard_condition_t *guard)
{
  if (!is_ours(guard)) {
    return WRONG_RMW;
  }
  pthread_mutex_lock(&lock);
  *(bool *)guard->data = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return RMW_RET_OK;
}

struct wait_set
{
  const char *implementation_identifier;
};

rmw_wait_set_t *rmw_create_wait_set(rmw_context_t *context, size_t max)
{
  (void)context;
  (void)max;
  struct wait_set *wait_set = calloc(1, sizeof(void *) * 4);
  wait_set->implementation_identifier = identifier;
  return (rmw_wait_set_t *)wait_set;
}

rmw_ret_t rmw_destroy_wait_set(rmw_wait_set_t *wait_set)
{
  free(wait_set);
  return RMW_RET_OK;
}

/* Counts those that are ready; with `tell`, the others become null. Events of this RMW are never ready. */
static size_t ready(
  const rmw_subscriptions_t *of_subscriptions, const rmw_guard_conditions_t *guards, const rmw_events_t *events, bool tell)
{
  size_t count = 0;
  for (size_t place = 0; of_subscriptions && place < of_subscriptions->subscriber_count; place++) {
    struct subscription *own = of_subscriptions->subscribers[place];
    if (own->count > 0) {
      count++;
    } else if (tell) {
      of_subscriptions->subscribers[place] = NULL;
    }
  }
  for (size_t place = 0; guards && place < guards->guard_condition_count; place++) {
    bool *triggered = guards->guard_conditions[place];
    if (*triggered) {
      count++;
    } else if (tell) {
      guards->guard_conditions[place] = NULL;
    }
    if (tell) {
      *triggered = false;
    }
  }
  for (size_t place = 0; events && place < events->event_count; place++) {
    is_ours(events->events[place]);
    if (tell) {
      events->events[place] = NULL;
    }
  }
  return count;
}

rmw_ret_t rmw_wait(
  rmw_subscriptions_t *of_subscriptions, rmw_guard_conditions_t *guards, rmw_services_t *services, rmw_clients_t *clients,
  rmw_events_t *events, rmw_wait_set_t *wait_set, const rmw_time_t *timeout)
{
  if (!is_ours(wait_set)) {
    return WRONG_RMW;
  }
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  if (timeout) {
    end.tv_sec += (time_t)timeout->sec;
    end.tv_nsec += (long)timeout->nsec;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
  }
  pthread_mutex_lock(&lock);
  int late = 0;
  while (ready(of_subscriptions, guards, events, false) == 0 && late == 0) {
    late = timeout ? pthread_cond_timedwait(&changed, &lock, &end) : pthread_cond_wait(&changed, &lock);
  }
  size_t count = ready(of_subscriptions, guards, events, true);
  pthread_mutex_unlock(&lock);
  for (size_t place = 0; services && place < services->service_count; place++) {
    services->services[place] = NULL;
  }
  for (size_t place = 0; clients && place < clients->client_count; place++) {
    clients->clients[place] = NULL;
  }
  return count > 0 ? RMW_RET_OK : RMW_RET_TIMEOUT;
}
