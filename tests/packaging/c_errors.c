/* Every kind of misuse of kvferry.h gives a code and a sentence; none ends the process. */
#include <kvferry/kvferry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      printf("line %d: %s: %s\n", __LINE__, #condition, kvf_error_message()); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)
#define FAILS(call, wanted, part) CHECK((call) == (wanted) && strstr(kvf_error_message(), (part)) != NULL)

static unsigned char memory[4096], target[4096];

static void check_options(void) {
  kvf_options *options = kvf_options_new();
  kvf_engine *engine = NULL;
  FAILS(kvf_options_set(options, "tcp_stream", "2"), KVF_NOT_FOUND, "tcp_streams");
  FAILS(kvf_options_set(options, "tcp_streams", "two"), KVF_INVALID_ARGUMENT, "tcp_streams");
  FAILS(kvf_options_set(options, "checksum", "yes"), KVF_INVALID_ARGUMENT, "true or false");
  FAILS(kvf_options_set(options, "connect_timeout_s", "nan"), KVF_INVALID_ARGUMENT, "seconds");
  FAILS(kvf_options_set(options, NULL, "2"), KVF_INVALID_ARGUMENT, "NULL");
  CHECK(kvf_options_set(options, "transports", "carrier pigeon") == KVF_OK);
  FAILS(kvf_engine_create(options, &engine), KVF_INVALID_ARGUMENT, "carrier pigeon");
  CHECK(kvf_options_set(options, "transports", "tcp,shm") == KVF_OK);
  CHECK(kvf_options_set(options, "connect_timeout_s", "0.5") == KVF_OK);
  CHECK(kvf_engine_create(options, &engine) == KVF_OK);
  kvf_engine_free(engine);
  kvf_options_free(options);
}

static void check_transfers(void) {
  kvf_engine *owner = NULL, *reader = NULL;
  kvf_region offered, buffer, found;
  kvf_peer *peer = NULL;
  kvf_plan *plan = NULL;
  kvf_transfer *transfer = NULL;
  kvf_message *message = NULL;
  CHECK(kvf_engine_create(NULL, &owner) == KVF_OK && kvf_engine_create(NULL, &reader) == KVF_OK);
  CHECK(strlen(kvf_engine_node_id(owner)) == 32);
  FAILS(kvf_register(owner, NULL, 1, "null", KVF_REMOTE_READ, &offered), KVF_INVALID_ARGUMENT, "null");
  FAILS(kvf_register(owner, memory, sizeof memory, "bits", 8, &offered), KVF_INVALID_ARGUMENT, "access");
  CHECK(kvf_register(owner, memory, sizeof memory, "memory", KVF_REMOTE_READ, &offered) == KVF_OK);
  CHECK(kvf_register(reader, target, sizeof target, "target", 0, &buffer) == KVF_OK);
  CHECK(kvf_set_metadata(owner, "hello", 5) == KVF_OK);

  FAILS(kvf_connect(reader, "nowhere", NULL, 1000, &peer), KVF_INVALID_ARGUMENT, "nowhere");
  FAILS(kvf_connect(reader, kvf_engine_endpoint(owner), kvf_engine_node_id(reader), 5000, &peer),
        KVF_IDENTITY_MISMATCH, kvf_engine_node_id(owner));
  CHECK(kvf_connect(reader, kvf_engine_endpoint(owner), kvf_engine_node_id(owner), 5000, &peer) == KVF_OK);
  CHECK(kvf_peer_status(peer) == KVF_OK);
  char metadata[2];
  CHECK(kvf_peer_metadata(peer, metadata, sizeof metadata) == 5 && memcmp(metadata, "he", 2) == 0);
  FAILS(kvf_peer_region(peer, "no such", &found), KVF_NOT_FOUND, "no such");
  kvf_region first, second;
  CHECK(kvf_register(owner, memory, 8, "twice", KVF_REMOTE_READ, &first) == KVF_OK);
  CHECK(kvf_register(owner, memory + 8, 8, "twice", KVF_REMOTE_READ, &second) == KVF_OK && second.id != first.id);
  CHECK(kvf_peer_refresh(peer, 5000) == KVF_OK);
  FAILS(kvf_peer_region(peer, "twice", &found), KVF_INVALID_ARGUMENT, "2 regions 'twice'");
  CHECK(kvf_unregister(owner, second, 5000) == KVF_OK);
  CHECK(kvf_register(owner, memory, 8, "twice", KVF_REMOTE_READ, &second) == KVF_OK && second.id == first.id);
  CHECK(kvf_unregister(owner, first, 5000) == KVF_OK && kvf_peer_refresh(peer, 5000) == KVF_OK);
  CHECK(kvf_peer_region(peer, "twice", &found) == KVF_OK && found.generation == second.generation);
  CHECK(kvf_peer_region(peer, "memory", &found) == KVF_OK && found.id == offered.id && found.length == 4096);

  kvf_piece piece = {buffer.id, found.id, 0, 0, 4097};
  FAILS(kvf_prepare(reader, peer, KVF_READ, &piece, 1, &plan), KVF_OUT_OF_RANGE, "4097");
  piece.length = 4096;
  FAILS(kvf_prepare(reader, peer, KVF_READ, &piece, (size_t)-1, &plan), KVF_INVALID_ARGUMENT, "count");
  FAILS(kvf_transfer_piece_codes(transfer, NULL, 1), KVF_INVALID_ARGUMENT, "NULL");
  CHECK(kvf_peer_metadata(peer, NULL, 0) == 5 && kvf_peer_metadata(peer, NULL, 9) == 5);
  FAILS(kvf_prepare(reader, peer, KVF_WRITE, &piece, 1, &plan), KVF_PERMISSION_DENIED, "region");
  CHECK(kvf_prepare(reader, peer, KVF_READ, &piece, 1, &plan) == KVF_OK);
  CHECK(kvf_plan_bytes(plan) == 4096 && kvf_plan_runs(plan) == 1);
  memset(memory, 7, sizeof memory);
  kvf_submit_options options = KVF_SUBMIT_DEFAULTS;
  options.notify = "done";
  options.notify_length = 4;
  options.priority = (kvf_priority)9;
  FAILS(kvf_submit(reader, plan, &options, &transfer), KVF_INVALID_ARGUMENT, "priority");
  options.priority = KVF_HIGH;
  CHECK(kvf_submit(reader, plan, &options, &transfer) == KVF_OK);
  CHECK(kvf_transfer_wait(transfer, 10000) == KVF_OK && kvf_transfer_status(transfer) == KVF_OK);
  CHECK(kvf_transfer_settled(transfer) == 1 && kvf_transfer_event_fd(transfer) >= 0 && target[4095] == 7);
  kvf_code codes[2] = {KVF_INTERNAL, KVF_INTERNAL};
  CHECK(kvf_transfer_piece_codes(transfer, codes, 1) == KVF_OK && codes[0] == KVF_OK);
  FAILS(kvf_transfer_piece_codes(transfer, codes, 2), KVF_INVALID_ARGUMENT, "1 pieces");
  kvf_transfer_free(transfer);

  CHECK(kvf_next_message(owner, 10000, &message) == KVF_OK);
  size_t length = 0;
  CHECK(memcmp(kvf_message_body(message, &length), "done", 4) == 0 && length == 4);
  CHECK(kvf_send(owner, kvf_message_peer(message), "thanks", 6, 5000) == KVF_OK);
  kvf_message_free(message);
  CHECK(kvf_next_message(reader, 10000, &message) == KVF_OK);
  kvf_message_free(message);
  FAILS(kvf_next_message(reader, 10, &message), KVF_DEADLINE_EXCEEDED, "10 ms");
  FAILS(kvf_send(reader, 999999, "x", 1, 100), KVF_NOT_FOUND, "999999");

  CHECK(kvf_unregister(owner, offered, 5000) == KVF_OK);
  CHECK(kvf_execute(reader, plan, NULL, &transfer) == KVF_STALE && kvf_transfer_status(transfer) == KVF_STALE);
  kvf_transfer_cancel(transfer); /* too late: nothing happens */
  kvf_transfer_free(transfer);
  kvf_engine_free(reader);
  CHECK(kvf_peer_status(peer) == KVF_CANCELLED); /* handles may outlive their engine */
  kvf_peer_close(peer);
  kvf_plan_free(plan);
  kvf_peer_free(peer);
  kvf_engine_free(owner);
}

static void check_null_handles(void) {
  kvf_code code = KVF_OK;
  char byte = 0;
  size_t length = 1;
  CHECK(strcmp(kvf_engine_endpoint(NULL), "") == 0 && strcmp(kvf_engine_node_id(NULL), "") == 0);
  FAILS(kvf_peer_status(NULL), KVF_INVALID_ARGUMENT, "kvf_peer_status");
  FAILS(kvf_peer_refresh(NULL, 1), KVF_INVALID_ARGUMENT, "kvf_peer_refresh");
  FAILS(kvf_transfer_wait(NULL, 1), KVF_INVALID_ARGUMENT, "kvf_transfer_wait");
  FAILS(kvf_transfer_status(NULL), KVF_INVALID_ARGUMENT, "kvf_transfer_status");
  FAILS(kvf_transfer_piece_codes(NULL, &code, 1), KVF_INVALID_ARGUMENT, "kvf_transfer_piece_codes");
  CHECK(kvf_peer_handle(NULL) == 0 && kvf_peer_metadata(NULL, &byte, 1) == 0);
  CHECK(kvf_plan_bytes(NULL) == 0 && kvf_plan_runs(NULL) == 0);
  CHECK(kvf_transfer_settled(NULL) == 0 && kvf_transfer_event_fd(NULL) == -1);
  CHECK(kvf_message_peer(NULL) == 0 && kvf_message_body(NULL, &length) == NULL && length == 0);
  kvf_peer_close(NULL);
  kvf_transfer_cancel(NULL);
  kvf_engine_free(NULL);
  kvf_peer_free(NULL);
  kvf_plan_free(NULL);
  kvf_transfer_free(NULL);
  kvf_message_free(NULL);
  kvf_options_free(NULL);
}

int main(void) {
  CHECK(strcmp(kvf_code_name(KVF_PEER_LOST), "peer_lost") == 0);
  CHECK(strcmp(kvf_code_name((kvf_code)99), "unknown") == 0);
  FAILS(kvf_engine_create(NULL, NULL), KVF_INVALID_ARGUMENT, "NULL");
  check_null_handles();
  check_options();
  check_transfers();
  puts("all checks hold");
  return 0;
}
