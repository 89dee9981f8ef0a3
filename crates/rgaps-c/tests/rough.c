/* Rough conditions: signals, small stacks, no free file descriptors, ending threads, long runs. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

#include "check.h"

static rgaps_node_t *node;

/* Entries of a folder of /proc/self. */
static int entries_of(const char *folder) {
  DIR *entries = opendir(folder);
  int count = 0;
  CHECK(entries != NULL);
  while (readdir(entries) != NULL) count++;
  closedir(entries);
  return count;
}

/* ---- Signals. ---- */

static atomic_int signals;

static void on_signal(int number) {
  (void)number;
  atomic_fetch_add(&signals, 1);
}

static void *publish_after_signals(void *argument) {
  int before = atomic_load(&signals);
  while (atomic_load(&signals) < before + 20) sched_yield();
  publish_number(argument, 42);
  return NULL;
}

/* Without SA_RESTART, so that signals interrupt every system call that can be interrupted. */
static void signals_disturb_no_call(void) {
  struct sigaction action = {.sa_handler = on_signal};
  struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
  const uint64_t timeouts[] = {LONG_NS, UINT64_MAX, UINT64_MAX - 1, INT64_MAX, (uint64_t)INT64_MAX + 1};
  CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
  for (int round = 0; round < 40; round++) {
    rgaps_node_t *own = node_on(NULL);
    rgaps_publisher_t *publisher = publisher_of(own, "/ctest/signals", RGAPS_KIND_BYTES);
    rgaps_subscriber_t *subscriber = subscriber_of(own, "/ctest/signals", RGAPS_KIND_BYTES);
    rgaps_sample_t *message = NULL;
    pthread_t thread;
    int32_t fd = -1;
    OK(rgaps_subscriber_event_fd(subscriber, &fd));
    CHECK(pthread_create(&thread, NULL, publish_after_signals, publisher) == 0);
    OK(rgaps_subscriber_wait(subscriber, timeouts[round % 5], &message));
    CHECK(number_in(message) == 42);
    OK(rgaps_sample_release(message, NULL));
    CHECK(pthread_join(thread, NULL) == 0);
    FAILS(rgaps_subscriber_wait(subscriber, 2000000, &message), RGAPS_TIMED_OUT, "in time");
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
    rgaps_node_destroy(own);
  }
  CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && atomic_load(&signals) > 0);
}

/* ---- Destroyed objects leave nothing behind. ---- */

static void destroyed_objects_leave_no_file_descriptor_and_no_thread(void) {
  int fds = 0, threads = 0;
  for (int round = 0; round < 30; round++) {
    rgaps_node_t *own = node_on(NULL);
    rgaps_publisher_t *publisher = publisher_of(own, "/ctest/left", RGAPS_KIND_BYTES);
    rgaps_subscriber_t *subscriber = subscriber_of(own, "/ctest/left", RGAPS_KIND_BYTES);
    int32_t fd = -1;
    OK(rgaps_subscriber_event_fd(subscriber, &fd));
    publish_number(publisher, 1);
    CHECK(next_number(subscriber) == 1);
    rgaps_subscriber_destroy(subscriber);
    CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
    rgaps_publisher_destroy(publisher);
    rgaps_node_destroy(own);
    /* One-time allocations exist after the first round. */
    if (round == 0) {
      fds = entries_of("/proc/self/fd");
      threads = entries_of("/proc/self/task");
    }
  }
  CHECK(entries_of("/proc/self/fd") == fds);
  /* A joined thread stays in /proc until the kernel has released it; a round that leaves a thread leaves 29 of them. */
  for (time_t start = time(NULL); entries_of("/proc/self/task") > threads; sched_yield()) CHECK(time(NULL) - start < 60);
}

/* A held message keeps its memory, but its destroyed subscriber has left the topic. */
static void a_destroyed_subscriber_blocks_no_publisher_while_its_message_is_held(void) {
  rgaps_subscriber_qos_t all = rgaps_subscriber_qos_default();
  rgaps_publisher_qos_t offered = rgaps_publisher_qos_default();
  rgaps_publisher_t *publisher = NULL;
  rgaps_subscriber_t *subscriber = NULL;
  rgaps_sample_t *message;
  all.depth = 0;
  offered.exhaustion_timeout_ms = 1;
  OK(rgaps_publisher_create(node, "/ctest/gone", RGAPS_KIND_BYTES, &offered, &publisher));
  OK(rgaps_subscriber_create(node, "/ctest/gone", RGAPS_KIND_BYTES, &all, &subscriber));
  publish_number(publisher, 0);
  message = next_of(subscriber);
  rgaps_subscriber_destroy(subscriber);
  for (uint64_t number = 1; number < 5000; number++) publish_number(publisher, number);
  CHECK(number_in(message) == 0);
  OK(rgaps_sample_release(message, NULL));
  rgaps_publisher_destroy(publisher);
}

/* ---- Limits of the process. ---- */

static void without_file_descriptors_calls_fail_and_with_them_they_work_again(void) {
  struct rlimit before, few;
  rgaps_node_t *nodes[64];
  int count = 0, failures = 0;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  few = before;
  for (int room = 0; room < 14; room++) {
    rgaps_node_t *own = NULL;
    /* The lowest free file descriptor number. */
    int next = dup(STDERR_FILENO);
    CHECK(next >= 0 && close(next) == 0);
    few.rlim_cur = (rlim_t)(next + room);
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    failures += rgaps_node_create(NULL, &own) != RGAPS_OK;
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    rgaps_node_destroy(own);
  }
  CHECK(failures > 0);
  while (count < 64) nodes[count++] = node_on(NULL);
  while (count > 0) rgaps_node_destroy(nodes[--count]);
  {
    rgaps_publisher_t *publisher = publisher_of(node, "/ctest/few", RGAPS_KIND_BYTES);
    rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/few", RGAPS_KIND_BYTES);
    publish_number(publisher, 9);
    CHECK(next_number(subscriber) == 9);
    rgaps_publisher_destroy(publisher);
    rgaps_subscriber_destroy(subscriber);
  }
}

static void a_full_topic_refuses_one_more_until_one_leaves(void) {
  static rgaps_subscriber_t *subscribers[1025];
  rgaps_status_t status = RGAPS_OK;
  struct rlimit limit;
  int count = 0;
  /* Each subscriber's fd uses a file descriptor. */
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  while (count < 1025 && (status = rgaps_subscriber_create(node, "/ctest/full_house", 0, NULL, &subscribers[count])) == RGAPS_OK) count++;
  CHECK(status == RGAPS_REFUSED && count >= 1000 && strstr(rgaps_error_text(), "1024") != NULL);
  rgaps_subscriber_destroy(subscribers[count / 2]);
  OK(rgaps_subscriber_create(node, "/ctest/full_house", 0, NULL, &subscribers[count / 2]));
  while (count > 0) rgaps_subscriber_destroy(subscribers[--count]);
}

/* ---- Threads with small stacks, and ending threads. ---- */

static pthread_key_t key;

static void call_while_the_thread_ends(void *argument) {
  /* The thread's error text is gone already, but the returned status is right. */
  CHECK(rgaps_sample_release(NULL, NULL) == RGAPS_INVALID_HANDLE && rgaps_error_text() != NULL);
  publish_number(argument, 6);
}

static void *publish_and_take(void *argument) {
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/stack", RGAPS_KIND_BYTES);
  publish_number(argument, 5);
  CHECK(next_number(subscriber) == 5);
  rgaps_subscriber_destroy(subscriber);
  FAILS(rgaps_sample_release(NULL, NULL), RGAPS_INVALID_HANDLE, "NULL");
  CHECK(pthread_setspecific(key, argument) == 0);
  return NULL;
}

static void threads_with_small_stacks_and_ending_threads_may_call(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/stack", RGAPS_KIND_BYTES);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/stack", RGAPS_KIND_BYTES);
  pthread_attr_t attributes;
  pthread_t thread;
  CHECK(pthread_key_create(&key, call_while_the_thread_ends) == 0);
  CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 256 << 10) == 0);
  CHECK(pthread_create(&thread, &attributes, publish_and_take, publisher) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(next_number(subscriber) == 5 && next_number(subscriber) == 6);
  CHECK(pthread_attr_destroy(&attributes) == 0 && pthread_key_delete(key) == 0);
  rgaps_subscriber_destroy(subscriber);
  rgaps_publisher_destroy(publisher);
}

/* ---- Long runs. ---- */

static void no_handle_is_reused_in_a_long_run(void) {
  enum { OLD = 64, ROUNDS = 200000 };
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/long", RGAPS_KIND_BYTES);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/long", RGAPS_KIND_BYTES);
  rgaps_publisher_statistics_t statistics;
  void *old[OLD];
  /* In groups of three, so that places of the handle table are reused in another order. */
  for (uint64_t number = 0; number < ROUNDS; number += 3) {
    rgaps_sample_t *messages[3];
    uint64_t count = 0;
    for (uint64_t index = 0; index < 3; index++) publish_number(publisher, number + index);
    OK(rgaps_subscriber_take_all(subscriber, messages, 3, &count));
    CHECK(count == 3 && number_in(messages[0]) == number && number_in(messages[2]) == number + 2);
    for (uint64_t index = 0; index < 3; index++) OK(rgaps_sample_release(messages[(index + number) % 3], NULL));
    if (number / 3 < OLD) old[number / 3] = messages[1];
    CHECK(number / 3 < OLD || messages[1] != old[number % OLD]);
  }
  for (int index = 0; index < OLD; index++) CHECK(rgaps_sample_release(old[index], NULL) == RGAPS_INVALID_HANDLE);
  OK(rgaps_publisher_statistics(publisher, &statistics));
  CHECK(statistics.outstanding == 0 && statistics.used_bytes == 0);
  rgaps_subscriber_destroy(subscriber);
  rgaps_publisher_destroy(publisher);
}

/* Payloads may have any alignment. */
static void bytes_at_odd_addresses_are_published(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/odd", RGAPS_KIND_BYTES);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/odd", RGAPS_KIND_BYTES);
  char text[4200];
  for (size_t index = 0; index < sizeof text; index++) text[index] = (char)(index * 31);
  for (size_t length = 0; length < 4100; length += 97) {
    rgaps_meta_t meta = bytes_meta(length);
    rgaps_sample_t *message;
    const void *data = NULL;
    OK(rgaps_publisher_push_host(publisher, &meta, text + length % 13, length, NULL));
    message = next_of(subscriber);
    OK(rgaps_sample_data(message, &data, NULL));
    CHECK(memcmp(data, text + length % 13, length) == 0);
    OK(rgaps_sample_release(message, NULL));
  }
  rgaps_subscriber_destroy(subscriber);
  rgaps_publisher_destroy(publisher);
}

int main(void) {
  node = node_on(NULL);
  signals_disturb_no_call();
  destroyed_objects_leave_no_file_descriptor_and_no_thread();
  a_full_topic_refuses_one_more_until_one_leaves();
  threads_with_small_stacks_and_ending_threads_may_call();
  no_handle_is_reused_in_a_long_run();
  bytes_at_odd_addresses_are_published();
  without_file_descriptors_calls_fail_and_with_them_they_work_again();
  a_destroyed_subscriber_blocks_no_publisher_while_its_message_is_held();
  rgaps_node_destroy(node);
  return 0;
}
