/* Many threads share a handle: allowed uses work, and a call that is too late gets an error. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "check.h"

#define THREADS 4

static rgaps_node_t *node;

static void start(pthread_t *threads, int count, void *(*body)(void *), void *argument) {
  for (int index = 0; index < count; index++) CHECK(pthread_create(&threads[index], NULL, body, argument) == 0);
}

static void join(pthread_t *threads, int count) {
  for (int index = 0; index < count; index++) CHECK(pthread_join(threads[index], NULL) == 0);
}

/* ---- Many threads wait on one subscriber, one of them briefly. ---- */

#define END UINT64_MAX

struct waiting {
  rgaps_subscriber_t *subscriber;
  atomic_ullong taken, brief_rounds, brief_done;
};

/* Waits for a message. */
static void *wait_long(void *argument) {
  struct waiting *waiting = argument;
  while (next_number(waiting->subscriber) != END) atomic_fetch_add(&waiting->taken, 1);
  return NULL;
}

/* Starts and ends short waits between two messages, while the other threads go to sleep. */
static void *wait_briefly(void *argument) {
  struct waiting *waiting = argument;
  for (unsigned long long done = 0;; done++) {
    rgaps_sample_t *message = NULL;
    unsigned long long rounds;
    while ((rounds = atomic_load(&waiting->brief_rounds)) == done) sched_yield();
    if (rounds == END) return NULL;
    CHECK(rgaps_subscriber_wait(waiting->subscriber, done % 64 * 500, &message) == RGAPS_TIMED_OUT);
    atomic_store(&waiting->brief_done, done + 1);
  }
}

static void a_brief_wait_does_not_keep_another_thread_asleep(void) {
  const uint64_t rounds = 3000;
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/wait", RGAPS_KIND_BYTES);
  struct waiting waiting = {.subscriber = subscriber_of(node, "/ctest/wait", RGAPS_KIND_BYTES)};
  pthread_t longer[2], brief;
  start(longer, 2, wait_long, &waiting);
  start(&brief, 1, wait_briefly, &waiting);
  for (uint64_t number = 1; number <= rounds; number++) {
    atomic_store(&waiting.brief_rounds, number);
    while (atomic_load(&waiting.brief_done) < number) sched_yield();
    publish_number(publisher, number);
    while (atomic_load(&waiting.taken) < number) sched_yield();
  }
  atomic_store(&waiting.brief_rounds, END);
  for (int count = 0; count < 2; count++) publish_number(publisher, END);
  join(longer, 2);
  join(&brief, 1);
  rgaps_subscriber_destroy(waiting.subscriber);
  rgaps_publisher_destroy(publisher);
}

/* ---- Everything at once on shared handles. ---- */

#define EACH 3000

struct shared {
  rgaps_publisher_t *publisher;
  rgaps_subscriber_t *subscriber;
  atomic_ullong sum, taken, next;
  atomic_int publishers;
};

static void *publish_many(void *argument) {
  struct shared *shared = argument;
  for (int count = 0; count < EACH; count++) {
    uint64_t number = atomic_fetch_add(&shared->next, 1);
    if (number % 3 == 0) {
      rgaps_meta_t meta = bytes_meta(sizeof number);
      rgaps_loan_t *loan = NULL;
      void *data = NULL;
      OK(rgaps_publisher_loan(shared->publisher, &meta, &loan));
      OK(rgaps_loan_data(loan, &data, NULL));
      memcpy(data, &number, sizeof number);
      OK(rgaps_loan_publish(loan, NULL, NULL));
    } else {
      publish_number(shared->publisher, number);
    }
    CHECK(rgaps_publisher_subscriber_count(shared->publisher) == 1);
  }
  atomic_fetch_sub(&shared->publishers, 1);
  return NULL;
}

static void *take_many(void *argument) {
  struct shared *shared = argument;
  while (atomic_load(&shared->taken) < (unsigned long long)THREADS * EACH) {
    rgaps_sample_t *messages[8];
    rgaps_subscriber_statistics_t statistics;
    uint64_t count = 0;
    OK(rgaps_subscriber_take_all(shared->subscriber, messages, 8, &count));
    for (uint64_t index = 0; index < count; index++) {
      atomic_fetch_add(&shared->sum, number_in(messages[index]));
      OK(rgaps_sample_release(messages[index], NULL));
    }
    atomic_fetch_add(&shared->taken, count);
    OK(rgaps_subscriber_statistics(shared->subscriber, &statistics));
    CHECK(statistics.lost == 0 && statistics.held <= (uint64_t)THREADS * 8);
    if (count == 0) sched_yield();
  }
  return NULL;
}

static void many_threads_take_each_message_of_many_threads_once(void) {
  const unsigned long long all = (unsigned long long)THREADS * EACH;
  rgaps_subscriber_qos_t wanted = rgaps_subscriber_qos_default();
  rgaps_publisher_qos_t offered = rgaps_publisher_qos_default();
  struct shared shared = {.publishers = THREADS};
  pthread_t publishers[THREADS], takers[THREADS];
  wanted.depth = 0;
  offered.exhaustion_timeout_ms = 60000;
  OK(rgaps_publisher_create(node, "/ctest/shared", RGAPS_KIND_BYTES, &offered, &shared.publisher));
  OK(rgaps_subscriber_create(node, "/ctest/shared", RGAPS_KIND_BYTES, &wanted, &shared.subscriber));
  start(publishers, THREADS, publish_many, &shared);
  start(takers, THREADS, take_many, &shared);
  join(publishers, THREADS);
  join(takers, THREADS);
  CHECK(atomic_load(&shared.taken) == all && atomic_load(&shared.sum) == all * (all - 1) / 2);
  rgaps_subscriber_destroy(shared.subscriber);
  rgaps_publisher_destroy(shared.publisher);
}

/* ---- Destroying an object that other threads use. ---- */

struct ending {
  rgaps_subscriber_t *subscriber;
  atomic_int waiting;
};

static void *wait_until_the_end(void *argument) {
  struct ending *ending = argument;
  rgaps_sample_t *message = NULL;
  atomic_fetch_add(&ending->waiting, 1);
  FAILS(rgaps_subscriber_wait(ending->subscriber, UINT64_MAX, &message), RGAPS_INVALID_HANDLE, "destroyed");
  CHECK(message == NULL);
  return NULL;
}

/* The handle of a message that another host might still send. */
static void *take_by_handle_until_the_end(void *argument) {
  struct ending *ending = argument;
  rgaps_message_handle_t handle = {.source_host = {7}, .publisher = 9, .sequence = 1, .layout_version = 1, .kind = RGAPS_KIND_BYTES};
  rgaps_sample_t *message = NULL;
  atomic_fetch_add(&ending->waiting, 1);
  FAILS(rgaps_subscriber_take_by_handle(ending->subscriber, &handle, UINT64_MAX, &message), RGAPS_INVALID_HANDLE, "destroyed");
  CHECK(message == NULL);
  return NULL;
}

static void waits_and_takes_by_handle_end_when_their_subscriber_is_destroyed(void) {
  for (int round = 0; round < 50; round++) {
    struct ending ending = {.subscriber = subscriber_of(node, "/ctest/end", RGAPS_KIND_BYTES)};
    pthread_t threads[THREADS];
    start(threads, THREADS / 2, wait_until_the_end, &ending);
    start(threads + THREADS / 2, THREADS / 2, take_by_handle_until_the_end, &ending);
    while (atomic_load(&ending.waiting) < THREADS) sched_yield();
    /* In some rounds the threads sleep already, in others not yet. */
    for (int turn = 0; turn < round * 20; turn++) sched_yield();
    rgaps_subscriber_destroy(ending.subscriber);
    join(threads, THREADS);
  }
}

static void *wait_until_interrupted(void *argument) {
  struct ending *ending = argument;
  rgaps_sample_t *message = NULL;
  atomic_fetch_add(&ending->waiting, 1);
  FAILS(rgaps_subscriber_wait(ending->subscriber, UINT64_MAX, &message), RGAPS_TIMED_OUT, "interrupted");
  CHECK(message == NULL);
  return NULL;
}

static void *take_by_handle_until_interrupted(void *argument) {
  struct ending *ending = argument;
  rgaps_message_handle_t handle = {.source_host = {7}, .publisher = 9, .sequence = 1, .layout_version = 1, .kind = RGAPS_KIND_BYTES};
  rgaps_sample_t *message = NULL;
  atomic_fetch_add(&ending->waiting, 1);
  FAILS(rgaps_subscriber_take_by_handle(ending->subscriber, &handle, UINT64_MAX, &message), RGAPS_TIMED_OUT, "interrupted");
  CHECK(message == NULL);
  return NULL;
}

static void an_interrupt_ends_waits_and_ready_messages_are_still_taken(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/interrupt", RGAPS_KIND_BYTES);
  for (int round = 0; round < 20; round++) {
    struct ending ending = {.subscriber = subscriber_of(node, "/ctest/interrupt", RGAPS_KIND_BYTES)};
    pthread_t threads[2];
    start(threads, 1, wait_until_interrupted, &ending);
    start(threads + 1, 1, take_by_handle_until_interrupted, &ending);
    while (atomic_load(&ending.waiting) < 2) sched_yield();
    for (int turn = 0; turn < round * 20; turn++) sched_yield();
    OK(rgaps_subscriber_interrupt(ending.subscriber));
    join(threads, 2);
    wait_until_interrupted(&ending);
    publish_number(publisher, 5);
    CHECK(next_number(ending.subscriber) == 5);
    rgaps_subscriber_destroy(ending.subscriber);
  }
  rgaps_publisher_destroy(publisher);
}

struct used {
  rgaps_publisher_t *publisher;
  rgaps_subscriber_t *subscriber;
  atomic_int rounds;
};

/* Uses the objects until they are destroyed. */
static void *use_until_it_is_gone(void *argument) {
  struct used *used = argument;
  rgaps_meta_t meta = bytes_meta(8);
  uint64_t number = 0, count = 0;
  rgaps_status_t published, taken;
  do {
    rgaps_sample_t *message = NULL;
    rgaps_subscriber_statistics_t statistics;
    int32_t fd;
    published = rgaps_publisher_push_host(used->publisher, &meta, &number, sizeof number, NULL);
    taken = rgaps_subscriber_take(used->subscriber, &message);
    if (taken == RGAPS_OK) {
      number_in(message);
      OK(rgaps_sample_release(message, NULL));
    }
    taken = count % 2 ? rgaps_subscriber_statistics(used->subscriber, &statistics) : rgaps_subscriber_event_fd(used->subscriber, &fd);
    if (count % 3 == 0) rgaps_subscriber_pull(used->subscriber);
    count++;
    atomic_fetch_add(&used->rounds, 1);
  } while (published == RGAPS_OK || taken == RGAPS_OK);
  CHECK(published == RGAPS_INVALID_HANDLE && taken == RGAPS_INVALID_HANDLE);
  return NULL;
}

static void objects_may_be_destroyed_while_other_threads_use_them(void) {
  for (int round = 0; round < 4; round++) {
    rgaps_node_t *own = node_on(NULL);
    struct used used = {publisher_of(own, "/ctest/used", 0), subscriber_of(own, "/ctest/used", 0), 0};
    pthread_t threads[THREADS];
    start(threads, THREADS, use_until_it_is_gone, &used);
    while (atomic_load(&used.rounds) < 20) sched_yield();
    rgaps_node_destroy(own);
    rgaps_publisher_destroy(used.publisher);
    rgaps_subscriber_destroy(used.subscriber);
    join(threads, THREADS);
  }
}

struct once {
  pthread_barrier_t barrier;
  void *handle;
  int what;
  atomic_int succeeded, refused;
};

static void *release_once(void *argument) {
  struct once *once = argument;
  rgaps_status_t status;
  pthread_barrier_wait(&once->barrier);
  switch (once->what) {
    case 0:
      status = rgaps_sample_release(once->handle, NULL);
      break;
    case 1:
      status = rgaps_loan_publish(once->handle, NULL, NULL);
      break;
    default:
      status = rgaps_loan_discard(once->handle);
  }
  CHECK(status == RGAPS_OK || status == RGAPS_INVALID_HANDLE);
  atomic_fetch_add(status == RGAPS_OK ? &once->succeeded : &once->refused, 1);
  return NULL;
}

static void a_handle_that_two_threads_release_is_released_once(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/once", RGAPS_KIND_BYTES);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/once", RGAPS_KIND_BYTES);
  rgaps_publisher_statistics_t statistics;
  uint64_t published = 0;
  for (int round = 0; round < 300; round++) {
    struct once once = {.what = round % 3};
    pthread_t threads[2];
    rgaps_meta_t meta = bytes_meta(8);
    if (once.what == 0) {
      publish_number(publisher, 1);
      published++;
      once.handle = next_of(subscriber);
    } else {
      rgaps_loan_t *loan = NULL;
      OK(rgaps_publisher_loan(publisher, &meta, &loan));
      once.handle = loan;
    }
    CHECK(pthread_barrier_init(&once.barrier, NULL, 2) == 0);
    start(threads, 2, release_once, &once);
    join(threads, 2);
    CHECK(pthread_barrier_destroy(&once.barrier) == 0);
    CHECK(atomic_load(&once.succeeded) == 1 && atomic_load(&once.refused) == 1);
    if (once.what == 1) {
      published++;
      OK(rgaps_sample_release(next_of(subscriber), NULL));
    }
  }
  OK(rgaps_publisher_statistics(publisher, &statistics));
  CHECK(statistics.published == published && statistics.outstanding == 0 && statistics.used_bytes == 0);
  rgaps_subscriber_destroy(subscriber);
  rgaps_publisher_destroy(publisher);
}

/* ---- Nodes are created and destroyed, and each thread has its own errors. ---- */

static void *come_and_go(void *argument) {
  atomic_int *number = argument;
  char topic[32], expected[40];
  int own = atomic_fetch_add(number, 1);
  rgaps_sample_t *message = NULL;
  rgaps_node_t *other = node_on(NULL);
  rgaps_subscriber_t *subscriber;
  CHECK(rgaps_error_status() == RGAPS_OK && rgaps_error_text()[0] == 0);
  snprintf(topic, sizeof topic, "/ctest/own_%d", own);
  snprintf(expected, sizeof expected, "%s:", topic);
  subscriber = subscriber_of(other, topic, RGAPS_KIND_BYTES);
  for (int count = 0; count < 100; count++) {
    FAILS(rgaps_subscriber_wait(subscriber, 0, &message), RGAPS_TIMED_OUT, expected);
  }
  rgaps_subscriber_destroy(subscriber);
  rgaps_node_destroy(other);
  return NULL;
}

static void each_thread_has_its_own_errors_while_nodes_are_created_and_destroyed(void) {
  atomic_int number = 0;
  pthread_t threads[16];
  start(threads, 16, come_and_go, &number);
  join(threads, 16);
}

int main(void) {
  node = node_on(NULL);
  each_thread_has_its_own_errors_while_nodes_are_created_and_destroyed();
  many_threads_take_each_message_of_many_threads_once();
  a_handle_that_two_threads_release_is_released_once();
  objects_may_be_destroyed_while_other_threads_use_them();
  a_brief_wait_does_not_keep_another_thread_asleep();
  waits_and_takes_by_handle_end_when_their_subscriber_is_destroyed();
  an_interrupt_ends_waits_and_ready_messages_are_still_taken();
  rgaps_node_destroy(node);
  return 0;
}
