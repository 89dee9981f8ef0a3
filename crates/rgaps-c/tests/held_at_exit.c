/* Programs that end in different ways while they hold messages, loans and tensors: they end, and a survivor gets the space back. */

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "check.h"
#include "tensor.h"

/* Static, so that the leak checker finds them reachable at the end. */
static rgaps_node_t *node;
static rgaps_publisher_t *publisher;
static rgaps_subscriber_t *subscriber;
static rgaps_sample_t *message;
static rgaps_loan_t *loan;
static struct DLManagedTensorVersioned *tensor, *written;

static void call_again(void) {
  uint64_t number;
  /* atexit handlers and destructors of static objects run after main. */
  CHECK(number_in(message) == 7);
  OK(rgaps_meta_bytes(&(rgaps_meta_t){0}, 1));
  CHECK(rgaps_sample_release(NULL, NULL) == RGAPS_INVALID_HANDLE && rgaps_error_text()[0] != 0);
  number = 8;
  memcpy(written->tensor.data, &number, sizeof number);
}

static void *sleep_in_wait(void *argument) {
  rgaps_sample_t *none = NULL;
  (void)argument;
  rgaps_subscriber_wait(subscriber, UINT64_MAX, &none);
  return NULL;
}

static void *end_by_exit(void *argument) {
  exit((int)(intptr_t)argument);
}

/* The program that ends while it holds one of everything. */
static int hold(const char *way) {
  rgaps_meta_t meta = bytes_meta(sizeof(uint64_t));
  pthread_t waiting, ending;
  node = node_on(NULL);
  subscriber = subscriber_of(node, "/ctest/held", RGAPS_KIND_BYTES);
  publisher = publisher_of(node, "/ctest/holder", RGAPS_KIND_BYTES);
  publish_number(publisher, 1);
  message = next_of(subscriber);
  OK(rgaps_sample_dlpack(message, NULL, NULL, &tensor));
  OK(rgaps_publisher_loan(publisher, &meta, &loan));
  OK(rgaps_loan_dlpack(loan, NULL, &written));
  CHECK(pthread_create(&waiting, NULL, sleep_in_wait, NULL) == 0);
  CHECK(atexit(call_again) == 0);
  if (strcmp(way, "return") == 0) return 0;
  if (strcmp(way, "exit") == 0) exit(0);
  if (strcmp(way, "_exit") == 0) _exit(0);
  if (strcmp(way, "kill") == 0) raise(SIGKILL);
  CHECK(pthread_create(&ending, NULL, end_by_exit, NULL) == 0);
  pthread_join(waiting, NULL);
  return 1;
}

/* A holder in a new process. */
static pid_t start(const char *program, const char *way) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl(program, program, way, (char *)NULL);
    _exit(127);
  }
  return child;
}

int main(int count, char **arguments) {
  const char *ways[] = {"return", "exit", "_exit", "kill", "exit in another thread"};
  rgaps_publisher_qos_t offered = rgaps_publisher_qos_default();
  rgaps_meta_t meta = bytes_meta(sizeof(uint64_t)), large = bytes_meta(3 << 20);
  rgaps_publisher_statistics_t statistics;
  if (count > 1) return hold(arguments[1]);

  node = node_on(NULL);
  offered.pool_bytes = 4 << 20;
  offered.durability = RGAPS_TRANSIENT_LOCAL;
  offered.exhaustion_timeout_ms = 60000;
  OK(rgaps_publisher_create(node, "/ctest/held", RGAPS_KIND_BYTES, &offered, &publisher));
  subscriber = subscriber_of(node, "/ctest/holder", RGAPS_KIND_BYTES);
  /* More rounds than a topic has publisher slots and subscriber slots. */
  for (int round = 0; round < 70; round++) {
    const char *way = ways[round % 5];
    uint64_t number = 7;
    int status = -1;
    pid_t child = start(arguments[0], way);
    /* Once the holder's message has arrived, the holder waits for ours. */
    message = next_of(subscriber);
    CHECK(number_in(message) == 1);
    OK(rgaps_publisher_push_host(publisher, &meta, &number, sizeof number, NULL));
    CHECK(waitpid(child, &status, 0) == child);
    if (strcmp(way, "kill") == 0) {
      CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    } else {
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(number_in(message) == 1);
    OK(rgaps_sample_release(message, NULL));
    /* This loan fits only if the held block is free again. */
    OK(rgaps_publisher_loan(publisher, &large, &loan));
    OK(rgaps_loan_discard(loan));
  }
  OK(rgaps_publisher_statistics(publisher, &statistics));
  CHECK(statistics.published == 70 && statistics.refused == 0);
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
  rgaps_node_destroy(node);
  return 0;
}
