/* A stand-in for rcutils that keeps the layer's errors and log for the test. Loaded before the layer, with global symbols. */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char error[1024];

void rcutils_set_error_state(const char *text, const char *file, size_t line)
{
  (void)file;
  (void)line;
  snprintf(error, sizeof error, "%s", text);
}

void rcutils_reset_error(void)
{
  error[0] = 0;
}

/* The calling thread's error, empty if there is none. */
const char *double_error(void)
{
  return error;
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char lines[1 << 16];
static size_t length;

bool rcutils_logging_logger_is_enabled_for(const char *name, int severity)
{
  (void)name;
  return severity >= 20;
}

void rcutils_log(const void *location, int severity, const char *name, const char *format, ...)
{
  (void)location;
  va_list arguments;
  va_start(arguments, format);
  char text[2048];
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&log_lock);
  int written = snprintf(lines + length, sizeof lines - length, "[%d] [%s] %s\n", severity, name, text);
  if (written > 0 && length + (size_t)written < sizeof lines) {
    length += (size_t)written;
  }
  pthread_mutex_unlock(&log_lock);
}

/* Copies the log so far. */
void double_log(char *into, size_t bytes)
{
  pthread_mutex_lock(&log_lock);
  snprintf(into, bytes, "%s", lines);
  pthread_mutex_unlock(&log_lock);
}
