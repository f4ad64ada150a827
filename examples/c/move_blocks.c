/* One program, two roles: the first process offers blocks, the second fetches some of them and says so.
 *
 *   ./move_blocks                      forks: both roles, and prints what was moved
 *   cc move_blocks.c $(pkg-config --cflags --libs kvferry) -o move_blocks */
#include <inttypes.h>
#include <kvferry/kvferry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK_BYTES = 64 * 1024, BLOCKS = 256, WANTED = 16, TIMEOUT_MS = 10000 };

static void must(kvf_code code, const char *what) {
  if (code == KVF_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, kvf_code_name(code), kvf_error_message());
  exit(1);
}

/* Offers BLOCKS blocks, block i filled with byte i, and waits until the other side says what it got. */
static int serve(int endpoint_pipe) {
  kvf_engine *engine = NULL;
  kvf_region region;
  void *data = NULL;
  must(kvf_engine_create(NULL, &engine), "start");
  must(kvf_allocate(engine, (uint64_t)BLOCK_BYTES * BLOCKS, "blocks", KVF_REMOTE_READ, &region, &data), "allocate");
  for (int i = 0; i < BLOCKS; ++i) memset((char *)data + (size_t)i * BLOCK_BYTES, i, BLOCK_BYTES);

  const char *endpoint = kvf_engine_endpoint(engine);
  if (write(endpoint_pipe, endpoint, strlen(endpoint) + 1) < 0) return 1;
  kvf_message *message = NULL;
  must(kvf_next_message(engine, TIMEOUT_MS, &message), "wait for the other side");
  size_t length = 0;
  const char *body = kvf_message_body(message, &length);
  printf("the other side says: %.*s\n", (int)length, body);
  kvf_message_free(message);
  kvf_engine_free(engine);
  return 0;
}

/* Reads every 16th block of the peer into a buffer of its own. */
static int fetch(const char *endpoint) {
  kvf_engine *engine = NULL;
  kvf_peer *peer = NULL;
  kvf_plan *plan = NULL;
  kvf_region ours, theirs;
  static unsigned char buffer[WANTED * BLOCK_BYTES];
  must(kvf_engine_create(NULL, &engine), "start");
  must(kvf_register(engine, buffer, sizeof buffer, "buffer", 0, &ours), "register");
  must(kvf_connect(engine, endpoint, NULL, TIMEOUT_MS, &peer), "connect");
  must(kvf_peer_region(peer, "blocks", &theirs), "look up the region");

  kvf_piece pieces[WANTED];
  for (uint64_t i = 0; i < WANTED; ++i) {
    pieces[i] = (kvf_piece){ours.id, theirs.id, i * BLOCK_BYTES, 16 * i * BLOCK_BYTES, BLOCK_BYTES};
  }
  must(kvf_prepare(engine, peer, KVF_READ, pieces, WANTED, &plan), "prepare");
  must(kvf_execute(engine, plan, NULL, NULL), "read");
  for (int i = 0; i < WANTED; ++i) {
    if (buffer[i * BLOCK_BYTES] != 16 * i || buffer[(i + 1) * BLOCK_BYTES - 1] != 16 * i) return 1;
  }
  char report[64];
  int length = snprintf(report, sizeof report, "%d blocks, %" PRIu64 " bytes, all right", WANTED, kvf_plan_bytes(plan));
  must(kvf_send(engine, kvf_peer_handle(peer), report, (size_t)length, TIMEOUT_MS), "report");
  kvf_plan_free(plan);
  kvf_peer_free(peer);
  kvf_engine_free(engine);
  return 0;
}

int main(void) {
  int endpoint_pipe[2];
  char endpoint[128] = "";
  if (pipe(endpoint_pipe) != 0) return 1;
  pid_t child = fork(); /* before any engine exists: threads do not survive a fork */
  if (child < 0) return 1;
  if (child == 0) {
    close(endpoint_pipe[1]);
    if (read(endpoint_pipe[0], endpoint, sizeof endpoint - 1) <= 0) return 1;
    return fetch(endpoint);
  }
  close(endpoint_pipe[0]);
  int failed = serve(endpoint_pipe[1]);
  int status = 0;
  waitpid(child, &status, 0);
  return failed || status != 0;
}
