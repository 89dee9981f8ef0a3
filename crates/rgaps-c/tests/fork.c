/* A program that forks: the child cannot use or harm its parent's objects, and can create its own node. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "check.h"
#include "tensor.h"

static rgaps_node_t *node;
static rgaps_publisher_t *publisher;
static rgaps_subscriber_t *subscriber;
static rgaps_sample_t *message;
static rgaps_loan_t *loan;
static struct DLManagedTensorVersioned *tensor;
static int32_t subscriber_fd;

/* Runs the body in a child, which must exit with 0. */
static void in_child(void (*body)(void)) {
  int status = -1;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    body();
    exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The parent has lost nothing. */
static void the_parent_goes_on(void) {
  void *data = NULL;
  CHECK(number_in(message) == 1 && *(const uint64_t *)tensor->tensor.data == 1);
  OK(rgaps_loan_data(loan, &data, NULL));
  CHECK(*(const uint64_t *)data == 2);
  publish_number(publisher, 3);
  CHECK(next_number(subscriber) == 3);
}

#define FORKED(call) FAILS(call, RGAPS_FORKED, "make a node after fork")

static void every_call_in_a_forked_child_says_so(void) {
  rgaps_meta_t meta = bytes_meta(8);
  rgaps_publisher_t *advertised = NULL;
  rgaps_subscriber_t *subscribed = NULL;
  rgaps_loan_t *loaned = NULL;
  rgaps_sample_t *taken = NULL;
  rgaps_device_t device;
  rgaps_publisher_statistics_t published;
  rgaps_subscriber_statistics_t statistics;
  struct DLManagedTensorVersioned *made = NULL;
  const void *read = NULL;
  void *data = NULL;
  uint64_t number = 0;
  uint32_t readiness;
  rgaps_info_t info;
  int32_t fd;
  FORKED(rgaps_node_device(node, &device));
  FORKED(rgaps_node_topics(node, NULL, 0, &number));
  FORKED(rgaps_publisher_create(node, "/ctest/child", 0, NULL, &advertised));
  FORKED(rgaps_subscriber_create(node, "/ctest/child", 0, NULL, &subscribed));
  FORKED(rgaps_publisher_loan(publisher, &meta, &loaned));
  FORKED(rgaps_publisher_push_host(publisher, &meta, &number, 8, NULL));
  FORKED(rgaps_publisher_push_on(publisher, &meta, &number, 8, NULL, NULL));
  FORKED((rgaps_status_t)rgaps_publisher_push(publisher, 8, &number));
  FORKED(rgaps_publisher_statistics(publisher, &published));
  CHECK(rgaps_publisher_subscriber_count(publisher) == 0);
  FORKED(rgaps_loan_data(loan, &data, NULL));
  FORKED(rgaps_loan_device_pointer(loan, &data));
  FORKED(rgaps_loan_set_meta(loan, &meta));
  FORKED(rgaps_loan_dlpack(loan, NULL, &made));
  FORKED(rgaps_loan_publish(loan, NULL, NULL));
  FORKED(rgaps_publisher_publish_all(publisher, &loan, 1, NULL, NULL));
  FORKED(rgaps_loan_discard(loan));
  FORKED(rgaps_subscriber_take(subscriber, &taken));
  FORKED(rgaps_subscriber_take_on(subscriber, NULL, &taken));
  FORKED(rgaps_subscriber_take_all(subscriber, &taken, 1, &number));
  FORKED(rgaps_subscriber_wait(subscriber, UINT64_MAX, &taken));
  FORKED(rgaps_subscriber_event_fd(subscriber, &fd));
  FORKED(rgaps_subscriber_statistics(subscriber, &statistics));
  CHECK(rgaps_subscriber_pull(subscriber) == NULL && rgaps_error_status() == RGAPS_FORKED);
  FORKED(rgaps_sample_meta(message, &meta));
  FORKED(rgaps_sample_info(message, &info));
  FORKED(rgaps_sample_data(message, &read, NULL));
  FORKED(rgaps_sample_device_pointer(message, &read, NULL));
  FORKED(rgaps_sample_readiness(message, &readiness));
  FORKED(rgaps_sample_dlpack(message, NULL, NULL, &made));
  FORKED(rgaps_sample_release(message, NULL));
  CHECK(advertised == NULL && subscribed == NULL && loaned == NULL && taken == NULL && made == NULL && data == NULL && read == NULL);
}

static void the_child_ends_what_is_not_its_own(void) {
  tensor->deleter(tensor);
  close(subscriber_fd);
  rgaps_sample_release(message, NULL);
  rgaps_loan_discard(loan);
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
  rgaps_node_destroy(node);
}

static void the_child_ends_at_once(void) { _exit(0); }

static void nothing(void) {}

static void the_child_publishes(void) {
  rgaps_node_t *own = node_on(NULL);
  rgaps_publisher_t *advertised = publisher_of(own, "/ctest/from_child", RGAPS_KIND_BYTES);
  for (uint64_t number = 0; number < 10; number++) publish_number(advertised, number);
  rgaps_publisher_destroy(advertised);
  rgaps_node_destroy(own);
}

static void the_grandchild_publishes(void) {
  rgaps_node_t *own = node_on(NULL);
  in_child(the_child_publishes);
  FAILS(rgaps_node_device(node, &(rgaps_device_t){0}), RGAPS_FORKED, "");
  rgaps_node_destroy(own);
}

static void a_child_exchanges_messages_with_its_parent_through_its_own_node(void) {
  rgaps_subscriber_qos_t wanted = rgaps_subscriber_qos_default();
  rgaps_subscriber_t *from_child = NULL;
  rgaps_publisher_t *to_child;
  int ready[2], status = -1;
  char byte = 0;
  pid_t child;
  wanted.depth = 100;
  OK(rgaps_subscriber_create(node, "/ctest/from_child", RGAPS_KIND_BYTES, &wanted, &from_child));
  in_child(the_child_publishes);
  for (uint64_t number = 0; number < 10; number++) CHECK(next_number(from_child) == number);
  in_child(the_grandchild_publishes);
  for (uint64_t number = 0; number < 10; number++) CHECK(next_number(from_child) == number);
  rgaps_subscriber_destroy(from_child);

  to_child = publisher_of(node, "/ctest/to_child", RGAPS_KIND_BYTES);
  CHECK(pipe(ready) == 0);
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    rgaps_node_t *own = node_on(NULL);
    rgaps_subscriber_t *subscribed = subscriber_of(own, "/ctest/to_child", RGAPS_KIND_BYTES);
    CHECK(write(ready[1], "!", 1) == 1);
    for (uint64_t number = 0; number < 10; number++) CHECK(next_number(subscribed) == number);
    /* The child calls exit while it holds handles. */
    exit(0);
  }
  CHECK(read(ready[0], &byte, 1) == 1);
  for (uint64_t number = 0; number < 10; number++) publish_number(to_child, number);
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  rgaps_publisher_destroy(to_child);
  close(ready[0]);
  close(ready[1]);
}

/* ---- A fork while other threads are inside calls. ---- */

static atomic_int is_over;

static void *be_busy(void *argument) {
  (void)argument;
  for (uint64_t number = 0; !atomic_load(&is_over); number++) {
    rgaps_meta_t meta = bytes_meta(8);
    rgaps_loan_t *own = NULL;
    rgaps_sample_t *taken = NULL;
    OK(rgaps_publisher_loan(publisher, &meta, &own));
    OK(number % 2 ? rgaps_loan_publish(own, NULL, NULL) : rgaps_loan_discard(own));
    if (rgaps_subscriber_take(subscriber, &taken) == RGAPS_OK) OK(rgaps_sample_release(taken, NULL));
  }
  return NULL;
}

static void the_child_of_a_busy_parent_works(void) {
  rgaps_device_t device;
  rgaps_node_t *own;
  FAILS(rgaps_node_device(node, &device), RGAPS_FORKED, "");
  FAILS(rgaps_sample_release(message, NULL), RGAPS_FORKED, "");
  own = node_on(NULL);
  {
    rgaps_publisher_t *advertised = publisher_of(own, "/ctest/busy", RGAPS_KIND_BYTES);
    rgaps_subscriber_t *subscribed = subscriber_of(own, "/ctest/busy", RGAPS_KIND_BYTES);
    publish_number(advertised, 5);
    CHECK(next_number(subscribed) == 5);
    rgaps_subscriber_destroy(subscribed);
    rgaps_publisher_destroy(advertised);
  }
  rgaps_node_destroy(own);
}

static void a_child_of_a_parent_whose_threads_are_busy_finds_no_lock_taken(void) {
  pthread_t threads[2];
  for (int index = 0; index < 2; index++) CHECK(pthread_create(&threads[index], NULL, be_busy, NULL) == 0);
  for (int round = 0; round < 100; round++) in_child(the_child_of_a_busy_parent_works);
  atomic_store(&is_over, 1);
  for (int index = 0; index < 2; index++) CHECK(pthread_join(threads[index], NULL) == 0);
}

int main(void) {
  void (*const children[])(void) = {every_call_in_a_forked_child_says_so, the_child_ends_what_is_not_its_own, the_child_ends_at_once, nothing};
  rgaps_sample_t *taken = NULL;
  rgaps_meta_t meta = bytes_meta(8);
  uint64_t number = 2;
  void *data = NULL;
  node = node_on(NULL);
  publisher = publisher_of(node, "/ctest/fork", RGAPS_KIND_BYTES);
  subscriber = subscriber_of(node, "/ctest/fork", RGAPS_KIND_BYTES);
  publish_number(publisher, 1);
  message = next_of(subscriber);
  OK(rgaps_sample_dlpack(message, NULL, NULL, &tensor));
  OK(rgaps_publisher_loan(publisher, &meta, &loan));
  OK(rgaps_loan_data(loan, &data, NULL));
  memcpy(data, &number, sizeof number);
  OK(rgaps_subscriber_event_fd(subscriber, &subscriber_fd));
  for (size_t index = 0; index < sizeof children / sizeof *children; index++) {
    in_child(children[index]);
    the_parent_goes_on();
  }
  a_child_exchanges_messages_with_its_parent_through_its_own_node();
  a_child_of_a_parent_whose_threads_are_busy_finds_no_lock_taken();

  OK(rgaps_loan_publish(loan, NULL, NULL));
  while (rgaps_subscriber_take(subscriber, &taken) == RGAPS_OK) OK(rgaps_sample_release(taken, NULL));
  OK(rgaps_sample_release(message, NULL));
  tensor->deleter(tensor);
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
  rgaps_node_destroy(node);
  return 0;
}
